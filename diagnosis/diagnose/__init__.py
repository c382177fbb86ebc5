"""From facts to findings: one look at the fleet. Pure.

A package of its own, above `recipes/`, so that packages form no circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from diagnosis.baseline import Baseline
from diagnosis.comparison import first_answer
from diagnosis.facts import FleetFacts
from diagnosis.finding import SEVERITY_ORDER, Diagnosis, Finding, Gap, Question
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.recipes.registry import BY_NAME, RECIPES
from diagnosis.scene import Scene

FLICKER = 0.5
"""Of a recipe's `raise_after_s`: for so long evidence may be absent before its finding is raised."""

CLEAR_AFTER_S = 20.0
"""Seconds without evidence after which it is cleared."""

CAUSE_WAIT_S = 15.0
"""Seconds by which a finding is raised later while there is evidence of its cause that has not lasted long enough."""

HOLD_S = 45.0
"""Seconds for which a raised finding is kept while its figures are missing."""

MAX_TRACKS = 4096

Subject = tuple[str, str, str]
"""Recipe, pool and pod (empty: no single pod)."""


@dataclass(frozen=True, slots=True)
class Track:
    """Evidence against one subject over several looks."""

    since_s: float
    last_s: float
    is_raised: bool
    shown: Indication
    """The last evidence."""


@dataclass(frozen=True, slots=True)
class DiagnosisState:
    """What one look leaves to the next. Begin with an empty one."""

    tracks: Mapping[Subject, Track] = field(default_factory=dict)


NO_STATE = DiagnosisState()


def diagnose(
    facts: FleetFacts, baseline: Baseline | None, state: DiagnosisState, now_s: float
) -> tuple[Diagnosis, DiagnosisState]:
    """Look once; call every 5 s with windows of about 30 s. Return the findings, and the state for the next look.

    `now_s` is Unix time. A finding is raised after its recipe's `raise_after_s` of evidence (up to 15 s later while
    there is evidence of its cause), and cleared 20 s after its last evidence.
    """
    scene = Scene(facts, baseline, now_s)
    seen: dict[Subject, Indication] = {}
    gaps: dict[tuple[str, str, str], list[str]] = {}
    unchecked: set[Subject] = set()
    for recipe in RECIPES:
        for each in _indications(recipe, scene):
            if isinstance(each, Missing):
                gaps.setdefault((recipe.name, each.pool, each.reason), []).append(each.pod)
                unchecked.add((recipe.name, each.pool, each.pod))
            else:
                seen[recipe.name, each.pool, each.pod] = each
    present = {pod.address for pod in facts.pods}
    tracks = _next_tracks(state.tracks, seen, unchecked, present, now_s)
    first = first_answer(scene.facts, baseline)
    return (
        Diagnosis(
            at_s=now_s,
            first=first,
            findings=_ranked(_findings(tracks, unchecked), first.question),
            gaps=tuple(
                Gap(recipe, pool, tuple(pod for pod in pods if pod), reason)
                for (recipe, pool, reason), pods in gaps.items()
            ),
        ),
        DiagnosisState(tracks),
    )


def _indications(recipe: Recipe, scene: Scene) -> Iterator[Indication | Missing]:
    """Yield what a recipe finds. One that raises counts as not checked: it must not hide the others."""
    try:
        yield from recipe.look(scene)
    except Exception as error:  # noqa: BLE001 - shown as a gap
        yield Missing("", "", f"the recipe raised {type(error).__name__}")


def _next_tracks(
    before: Mapping[Subject, Track],
    seen: Mapping[Subject, Indication],
    unchecked: set[Subject],
    present: set[str],
    now_s: float,
) -> dict[Subject, Track]:
    tracks: dict[Subject, Track] = {}
    before = {subject: _not_later(track, now_s) for subject, track in before.items()}
    for subject, track in before.items():
        if subject in seen or (subject[2] and subject[2] not in present and subject[0] != "clocks_apart"):
            continue
        limit = CLEAR_AFTER_S if track.is_raised else FLICKER * BY_NAME[subject[0]].raise_after_s
        if track.is_raised and (subject in unchecked or (subject[0], subject[1], "") in unchecked):
            limit = HOLD_S
        if now_s - track.last_s < limit:
            tracks[subject] = track
    for subject, shown in seen.items():
        held = before.get(subject)
        if held is None:
            if len(tracks) < MAX_TRACKS:
                tracks[subject] = Track(now_s, now_s, is_raised=False, shown=shown)
            continue
        is_raised = held.is_raised or (
            _is_due(held, subject, now_s)
            and (_is_due(held, subject, now_s - CAUSE_WAIT_S) or not _has_pending_cause(subject, seen, before, now_s))
        )
        tracks[subject] = Track(held.since_s, now_s, is_raised, shown)
    return tracks


def _is_due(track: Track, subject: Subject, now_s: float) -> bool:
    return now_s - track.since_s >= BY_NAME[subject[0]].raise_after_s


def _has_pending_cause(
    subject: Subject, seen: Mapping[Subject, Indication], before: Mapping[Subject, Track], now_s: float
) -> bool:
    """Return whether what would explain a finding is seen at the same pod, and not yet for as long as it must last."""
    for name in CAUSES[subject[0]]:
        cause = (name, *subject[1:])
        held = before.get(cause)
        if cause in seen and (held is None or not (held.is_raised or _is_due(held, cause, now_s))):
            return True
    return False


def _not_later(track: Track, now_s: float) -> Track:
    """Return a track without times of the future: the clock may have been set back."""
    if track.last_s <= now_s:
        return track
    return replace(track, since_s=min(track.since_s, now_s), last_s=now_s)


def _findings(tracks: Mapping[Subject, Track], unchecked: set[Subject]) -> list[Finding]:
    """One finding for each recipe and pool, with all its pods, those with the earliest evidence first.

    Where a recipe that would explain it could not be checked, a finding is not sure: it may be a consequence.
    """
    grouped: dict[tuple[str, str], list[Track]] = {}
    for (name, pool, _), track in tracks.items():
        if track.is_raised:
            grouped.setdefault((name, pool), []).append(track)
    found = [
        _finding(BY_NAME[name], pool, sorted(held, key=lambda track: track.since_s))
        for (name, pool), held in grouped.items()
    ]
    return [
        replace(finding, confidence=min(finding.confidence, UNSURE))
        if _may_be_explained(finding, unchecked)
        else finding
        for finding in found
    ]


def _may_be_explained(finding: Finding, unchecked: set[Subject]) -> bool:
    return any(
        (cause, finding.pool, pod) in unchecked for cause in CAUSES[finding.recipe] for pod in (*finding.pods, "")
    )


def _finding(recipe: Recipe, pool: str, tracks: list[Track]) -> Finding:
    severities = [track.shown.severity or recipe.severity for track in tracks]
    evidence = [each for track in tracks for each in track.shown.evidence]
    return Finding(
        recipe=recipe.name,
        title=recipe.title,
        question=recipe.question,
        severity=min(severities, key=SEVERITY_ORDER.__getitem__),
        pool=pool,
        pods=tuple(track.shown.pod for track in tracks if track.shown.pod),
        confidence=max(track.shown.confidence for track in tracks),
        evidence=tuple(evidence[:MAX_EVIDENCE]),
        cause=recipe.cause,
        first_step=recipe.first_step,
        helped=recipe.helped,
        wrong_if=recipe.wrong_if,
        since_s=tracks[0].since_s,
        affected=tuple(sorted({pod for track in tracks for pod in track.shown.affected})),
    )


MAX_EVIDENCE = 16
"""Figures that one finding shows."""


def _ranked(findings: list[Finding], question: Question) -> tuple[Finding, ...]:
    """Mark consequences of other findings, and order: causes first, then by severity, confidence, and fit to the first
    question.
    """
    order = {recipe.name: place for place, recipe in enumerate(RECIPES)}
    marked = [replace(finding, explained_by=_cause_of(finding, findings)) for finding in findings]
    marked.sort(
        key=lambda finding: (
            bool(finding.explained_by),
            SEVERITY_ORDER[finding.severity],
            finding.confidence < SURE,
            finding.question is not question,
            -finding.confidence,
            order[finding.recipe],
            finding.pool,
        )
    )
    return tuple(marked)


CAUSES = {name: tuple(each.name for each in RECIPES if name in each.explains) for name in BY_NAME}
"""By recipe: those that explain it."""

UNSURE = 0.65
"""Confidence of a finding that may be a consequence of what could not be checked."""

SURE = 0.7
"""Confidence below which a finding stands behind those above it."""


def _cause_of(finding: Finding, findings: Iterable[Finding]) -> str:
    """Return the recipe of another finding at the same pods, or in the same pool, that brings this one about."""
    for other in findings:
        if finding.recipe in BY_NAME[other.recipe].explains and _meet(finding, other):
            return other.recipe
    return ""


def _meet(one: Finding, other: Finding) -> bool:
    """Return whether `one` is of pods at which `other` shows."""
    if not other.pool or not one.pool:
        return True
    if one.pool != other.pool:
        return False
    return not one.pods or not other.pods or bool(set(one.pods) & {*other.pods, *other.affected})
