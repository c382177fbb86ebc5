"""The verdict on a canary: the terms of its trial, what all gateways keep of it, and what follows from the evidence.

`advance` takes the kept state and what one gateway has seen since, and returns the new state: the same function for
every worker and gateway, whatever the order. A verdict that is reached is never left, and none is reached that would
not be reached without any one group of tenants. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as with_changes
from enum import StrEnum
from math import inf
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from routing.canary.change import CanaryKind
from routing.canary.evidence import (
    MAX_RATIO,
    NO_EVIDENCE,
    DifferenceEvidence,
    Interval,
    RatioEvidence,
    TrialEvidence,
)

TESTS = 4
"""Kinds of comparison: each may err with its part of the stated probability."""

ABANDONED_S = 60.0
"""A trial that no gateway has renewed for this long is no longer configured anywhere: another may start."""

MAX_AHEAD_S = 3_600.0
"""A renewal that lies further ahead was made by a clock that was wrong, and counts for nothing."""

MIN_SHARE = 1e-6
"""Shares are counted in millionths."""

MAX_ENDED = 64
"""Verdicts that are kept of earlier trials."""


class Verdict(StrEnum):
    """What is to become of a canary."""

    HOLD = "hold"
    """Undecided: it keeps its share."""
    PROMOTE = "promote"
    """Its pods serve like all others."""
    REVERT = "revert"
    """Its pods serve no requests."""


class VerdictReason(StrEnum):
    """Why a verdict is what it is, or a trial has not begun."""

    NO_POD = "no_pod"
    STATE_UNREAD = "state_unread"
    ANOTHER_CANARY = "another_canary"
    MANY_OPTIONS = "many_options"
    OTHER_OPTION = "other_option"
    NO_OPTION = "no_option"
    OPTIONS_UNKNOWN = "options_unknown"
    NO_PARTNER = "no_partner"
    COLLECTING = "collecting"
    ONE_TENANT = "one_tenant"
    QUALITY_MISSING = "quality_missing"
    QUALITY_UNDECIDED = "quality_undecided"
    AS_GOOD = "as_good"
    TTFT_WORSE = "ttft_worse"
    TPOT_WORSE = "tpot_worse"
    ERRORS_WORSE = "errors_worse"
    QUALITY_WORSE = "quality_worse"
    MAX_DURATION = "max_duration"


class ComparisonKind(StrEnum):
    """What is compared."""

    TTFT = "ttft"
    TPOT = "tpot"
    ERRORS = "errors"
    QUALITY = "quality"


WORSE = {
    ComparisonKind.TTFT: VerdictReason.TTFT_WORSE,
    ComparisonKind.TPOT: VerdictReason.TPOT_WORSE,
    ComparisonKind.ERRORS: VerdictReason.ERRORS_WORSE,
    ComparisonKind.QUALITY: VerdictReason.QUALITY_WORSE,
}
"""Reasons to revert."""

REASON_TEXTS = {
    VerdictReason.NO_POD: "No pod of it is ready.",
    VerdictReason.STATE_UNREAD: "The verdict that all gateways share has not been read; it serves nothing until then.",
    VerdictReason.ANOTHER_CANARY: "Another canary runs; it serves nothing until that one has ended or is removed.",
    VerdictReason.MANY_OPTIONS: "A canary of configuration changes one scheduler parameter; its pods change several.",
    VerdictReason.OTHER_OPTION: "Its pods change another option than a scheduler parameter.",
    VerdictReason.NO_OPTION: "Its pods were started like the standing ones: nothing is on trial.",
    VerdictReason.OPTIONS_UNKNOWN: "How its pods, or the standing ones, were started is not known.",
    VerdictReason.NO_PARTNER: "Its pods prefill or decode for others, and can pair with no standing pod.",
    VerdictReason.COLLECTING: "Too few comparisons yet.",
    VerdictReason.ONE_TENANT: "Without the requests of one tenant the verdict would be different.",
    VerdictReason.QUALITY_MISSING: "It has lower precision, and its answers have not been compared.",
    VerdictReason.QUALITY_UNDECIDED: "It has lower precision, and too few answers have been compared.",
    VerdictReason.AS_GOOD: "Times, errors and, where it had to be compared, quality are within their limits.",
    VerdictReason.TTFT_WORSE: "Its first tokens come later than the limit allows.",
    VerdictReason.TPOT_WORSE: "Its tokens take longer than the limit allows.",
    VerdictReason.ERRORS_WORSE: "Its pods fail more requests than the limit allows.",
    VerdictReason.QUALITY_WORSE: "Its answers are worse than the limit allows.",
    VerdictReason.MAX_DURATION: "Undecided for as long as a trial may take.",
}
"""For operators, by reason."""

FIXES = {
    VerdictReason.STATE_UNREAD: "restore Redis, or see `state_file`; a gateway that has read it once needs neither",
    VerdictReason.MANY_OPTIONS: "change one option at a time, or set kind: release",
    VerdictReason.OTHER_OPTION: "change a scheduler parameter, or set kind: release",
    VerdictReason.NO_OPTION: "start its pods with the option that is to be tried",
    VerdictReason.OPTIONS_UNKNOWN: "run `hearth agent` beside its pods and the standing ones, or set kind: release",
    VerdictReason.NO_PARTNER: "set pairs_with_revision if its pods hold the same weights; else see docs/pairs.md",
    VerdictReason.ONE_TENANT: "look at its failures by tenant; set one_tenant_decides where all tenants are trusted",
    VerdictReason.QUALITY_MISSING: "let a tenant opt in (canary_compare in the policy), or remove the canary",
    VerdictReason.QUALITY_UNDECIDED: "wait, raise quality_share, or set judge_model",
}
"""What to do about those that last until something is done."""


@dataclass(frozen=True, slots=True)
class CanaryTerms:
    """`pool` or `revision` names its pods; both, those that are both. Ratios are of the standing pods' times."""

    name: str
    pool: str | None = None
    revision: str | None = None
    kind: CanaryKind | None = None
    """None: as its pods' options and builds have it."""
    traffic_share: float = 0.05
    """Of the requests that it could serve."""
    max_ttft_ratio: float = 1.1
    max_tpot_ratio: float = 1.1
    """A median ratio up to this is not a regression."""
    max_error_increase: float = 0.02
    """By which the share of failed attempts may be higher."""
    max_quality_loss: float = 0.02
    """By which the share of worse answers may exceed that of better ones."""
    false_revert_rate: float = 0.05
    """The probability that a canary within all limits is reverted, over its whole trial."""
    min_comparisons: int = 200
    """Comparisons before it is promoted; it is reverted as soon as the evidence is there."""
    max_duration_s: float = 86_400.0
    """A trial that is undecided after this time is reverted."""
    pairs_with_revision: str | None = None
    """Revision whose weights its pods hold too: they exchange KV with pods of that revision."""
    lower_precision: bool | None = None
    """Whether answers have to be compared; None: where options show a lower precision."""
    quality_share: float = 0.02
    """Of the requests of tenants that have opted in, those whose answers are compared."""
    quality_tokens_per_hour: float = 1_000_000.0
    """Tokens that comparisons may take, of each gateway process."""
    judge_model: str | None = None
    """Compares answers; None: they are compared as text."""
    one_tenant_decides: bool = False
    """Whether the requests of one tenant are enough for a verdict."""

    def __post_init__(self) -> None:
        if not self.pool and not self.revision:
            raise ValueError("pool: name the pool or the revision on trial")
        if not MIN_SHARE <= self.traffic_share < 1:
            words = f"traffic_share: must be from {MIN_SHARE:f} to below 1"
            raise ValueError(f"{words}; without the entry its pods serve like all others")
        if not 0 < self.false_revert_rate < 1:
            raise ValueError("false_revert_rate: must be between 0 and 1")
        if min(self.max_ttft_ratio, self.max_tpot_ratio) < 1 or self.min_comparisons < 1:
            raise ValueError("max_ttft_ratio, max_tpot_ratio, min_comparisons: must be >= 1")
        if max(self.max_ttft_ratio, self.max_tpot_ratio) > MAX_RATIO:
            raise ValueError(f"max_ttft_ratio, max_tpot_ratio: must be at most {MAX_RATIO}")
        if not 0 < self.max_error_increase < 1 or not 0 < self.max_quality_loss < 1:
            raise ValueError("max_error_increase, max_quality_loss: must be between 0 and 1")
        if not 0 <= self.quality_share <= 1 or not 0 <= self.quality_tokens_per_hour < inf:
            raise ValueError("quality_share: must be from 0 to 1; quality_tokens_per_hour: must be >= 0")
        if not 0 < self.max_duration_s < inf:
            raise ValueError("max_duration_s: must be above 0")
        if self.pairs_with_revision is not None and self.revision is None:
            raise ValueError("pairs_with_revision: needs the canary's own revision")

    @property
    def identity(self) -> str:
        """Return what a kept verdict belongs to: another name, pool or revision is another canary."""
        return "|".join((self.name, self.pool or "", self.revision or ""))

    @property
    def bar(self) -> float:
        """Return the wealth at which a test decides."""
        return TESTS / self.false_revert_rate

    def includes(self, pool: str | None, revision: str | None) -> bool:
        """Return whether a pod of this pool and revision is on trial."""
        return (self.pool is None or self.pool == pool) and (self.revision is None or self.revision == revision)


JUDGED_BY = (
    *("max_ttft_ratio", "max_tpot_ratio", "max_error_increase", "max_quality_loss"),
    *("false_revert_rate", "min_comparisons", "max_duration_s"),
)
"""Terms that are kept with a trial when it begins: another gateway's, or later ones, change no limit of it."""


class Trial(Struct, frozen=True, omit_defaults=True):
    """A trial, running or ended."""

    name: str
    limits: dict[str, float] = {}
    """The terms by which it is judged, by name (`JUDGED_BY`)."""
    evidence: TrialEvidence = NO_EVIDENCE
    within: frozenset[str] = frozenset()
    """Kinds of comparison that have been shown, at some time, to be within their limits."""
    needs_quality: bool = False
    """Whether a gateway has seen, or was told, that precision is lower."""
    active_s: float = 0.0
    """For how long gateways have run it."""
    renewed_s: float = 0.0
    """Unix time at which a gateway that has it configured last took part, by its clock."""
    verdict: Verdict = Verdict.HOLD
    reason: VerdictReason = VerdictReason.COLLECTING


class CanaryState(Struct, frozen=True, omit_defaults=True):
    """What all gateways keep: the trial that runs, and the verdicts of earlier ones."""

    running: str | None = None
    """Identity of the canary on trial; None where none is."""
    trial: Trial | None = None
    """Its trial."""
    ended: dict[str, Trial] = {}
    """By identity, the oldest first."""

    def of(self, identity: str) -> Trial | None:
        """Return the trial of a canary; None where it has none."""
        return self.ended.get(identity) or (self.trial if self.running == identity else None)


NO_STATE = CanaryState()


@dataclass(frozen=True, slots=True)
class TrialStep:
    """What one gateway adds to a trial."""

    evidence: TrialEvidence = NO_EVIDENCE
    may_start: bool = True
    """Whether its pods are there and may be on trial."""
    needs_quality: bool = False


def advance(state: CanaryState, terms: CanaryTerms, step: TrialStep, now_s: float) -> CanaryState:
    """Return the state after a step of one gateway. `now_s`: Unix time.

    The same object where nothing has to be kept: the canary has ended, another one runs, or it may not start.
    """
    identity = terms.identity
    if identity in state.ended or is_rejected(state, terms, now_s):
        return state
    trial = state.of(identity)
    if trial is None:
        if not step.may_start:
            return state
        trial = Trial(terms.name, {name: getattr(terms, name) for name in JUDGED_BY}, renewed_s=now_s)
    terms = judged_by(terms, trial)
    is_ahead = trial.renewed_s - now_s > MAX_AHEAD_S
    trial = replace(
        trial,
        evidence=trial.evidence + step.evidence,
        needs_quality=trial.needs_quality or step.needs_quality,
        active_s=trial.active_s + min(max(0.0, now_s - trial.renewed_s), ABANDONED_S),
        renewed_s=now_s if is_ahead else max(now_s, trial.renewed_s),
    )
    trial = replace(trial, within=trial.within | shown_within(terms, trial.evidence))
    verdict, reason = judge(terms, trial)
    trial = replace(trial, verdict=verdict, reason=reason)
    if verdict is Verdict.HOLD:
        return replace(state, running=identity, trial=trial)
    trial = replace(trial, evidence=replace(trial.evidence, by_group={}))
    ended = dict(list(state.ended.items())[-(MAX_ENDED - 1) :]) | {identity: trial}
    return CanaryState(ended=ended)


def judged_by(terms: CanaryTerms, trial: Trial | None) -> CanaryTerms:
    """Return the terms by which a trial is judged: those with which it began, where it has any."""
    kept: dict[str, Any] = {name: trial.limits[name] for name in JUDGED_BY if trial and name in trial.limits}
    return with_changes(terms, **kept) if kept else terms


def is_rejected(state: CanaryState, terms: CanaryTerms, now_s: float) -> bool:
    """Return whether another canary runs, so that this one may not start."""
    other = state.trial
    if other is None or state.running == terms.identity:
        return False
    return -MAX_AHEAD_S <= now_s - other.renewed_s <= ABANDONED_S


def merged(one: CanaryState, other: CanaryState) -> CanaryState:
    """Return a state with the verdicts of both: where one of them was lost, the other holds. `one` wins else."""
    ended = other.ended | one.ended
    running, trial = (one.running, one.trial) if one.trial is not None else (other.running, other.trial)
    if running in ended:
        running, trial = None, None
    return CanaryState(running, trial, ended)


def shown_within(terms: CanaryTerms, evidence: TrialEvidence) -> frozenset[str]:
    """Return the kinds of comparison that the evidence shows to be within their limits, also without any one group."""
    return frozenset(each.kind.value for each in _comparisons(terms, evidence) if each.is_within(terms.bar))


def judge(terms: CanaryTerms, trial: Trial) -> tuple[Verdict, VerdictReason]:
    """Return the verdict that follows from the evidence, and why.

    One kind of comparison is enough to revert; to promote, each must have been shown to be within its limit. Both must
    follow without any one group of tenants too.
    """
    found = trial.evidence
    for each in _comparisons(terms, found):
        if each.is_worse(terms.bar):
            return Verdict.REVERT, WORSE[each.kind]
    if _is_as_good(terms, found, trial.within):
        if not trial.needs_quality or ComparisonKind.QUALITY in trial.within:
            return Verdict.PROMOTE, VerdictReason.AS_GOOD
        # Nothing speaks against it, and nothing that is measured can speak for it: it keeps its share.
        return Verdict.HOLD, (VerdictReason.QUALITY_UNDECIDED if found.quality.total else VerdictReason.QUALITY_MISSING)
    is_late = trial.active_s >= terms.max_duration_s
    if _hinges_on_one_tenant(terms, found, is_late=is_late):
        # One tenant may keep a trial undecided, but neither end it nor have the clock end it.
        return Verdict.HOLD, VerdictReason.ONE_TENANT
    return (Verdict.REVERT, VerdictReason.MAX_DURATION) if is_late else (Verdict.HOLD, VerdictReason.COLLECTING)


def _is_as_good(terms: CanaryTerms, found: TrialEvidence, within: frozenset[str]) -> bool:
    wanted = {ComparisonKind.TTFT, ComparisonKind.ERRORS}
    if found.tpot.total:  # Models that do not generate have no times per token.
        wanted.add(ComparisonKind.TPOT)
    return wanted <= within and found.ttft.total >= terms.min_comparisons


def _hinges_on_one_tenant(terms: CanaryTerms, found: TrialEvidence, *, is_late: bool) -> bool:
    """Return whether evidence that is undecided would decide if all tenants were one; when it is late, also whether it
    would promote without some group.
    """
    if not found.by_group:
        return False
    together = replace(found, by_group={})
    if any(each.is_worse(terms.bar) for each in _comparisons(terms, together)):
        return True
    views = [together, *(found.without(group) for group in found.by_group)] if is_late else [together]
    return any(_is_as_good(terms, view, shown_within(terms, view)) for view in views)


@dataclass(frozen=True, slots=True)
class ComparisonSummary:
    """One kind of comparison, for operators."""

    kind: str
    comparisons: int
    interval: Interval
    """Of the median ratio, or of the difference of shares."""
    limit: float
    e_value: float
    """Evidence that it is worse: at `CanaryTerms.bar` it is reverted."""

    def __str__(self) -> str:
        """Return it as one phrase."""
        if not self.comparisons:
            return f"{self.kind}: no comparisons yet (limit {self.limit:g})"
        lower, upper = ("?" if bound is None else f"{bound:.3f}" for bound in self.interval)
        return f"{self.kind} {lower} to {upper} (limit {self.limit:g}, {self.comparisons} comparisons)"


def summaries(terms: CanaryTerms, evidence: TrialEvidence) -> Iterator[ComparisonSummary]:
    """Yield each kind of comparison with its interval, whose error is at most a test's on each side."""
    for each in _comparisons(terms, evidence):
        found = each.found
        yield ComparisonSummary(each.kind.value, found.total, found.interval(terms.bar), each.limit, each.e_value)


Found = TypeVar("Found", RatioEvidence, DifferenceEvidence)


@dataclass(frozen=True, slots=True)
class _Comparison(Generic[Found]):
    """One kind of comparison with its limit."""

    kind: ComparisonKind
    limit: float
    found: Found
    parts: tuple[Found, ...] = ()
    """That of each group of tenants."""

    def is_worse(self, bar: float) -> bool:
        """Return whether it is shown to be worse than its limit, also without any one group."""
        return all(view.above(self.limit) >= bar for view in self._views())

    def is_within(self, bar: float) -> bool:
        """Return whether it is shown to be within its limit, also without any one group."""
        return all(view.below(self.limit) >= bar for view in self._views())

    @property
    def e_value(self) -> float:
        """The evidence that it is worse which is left without any one group."""
        return min(view.above(self.limit) for view in self._views())

    def _views(self) -> Iterator[Found]:
        """Yield all of it first, so that the others are made only where that decides; then without each group."""
        yield self.found
        for part in self.parts:
            yield self.found - part


def _comparisons(
    terms: CanaryTerms, evidence: TrialEvidence
) -> tuple[_Comparison[RatioEvidence] | _Comparison[DifferenceEvidence], ...]:
    groups = evidence.by_group.values()
    return (
        _Comparison(ComparisonKind.TTFT, terms.max_ttft_ratio, evidence.ttft, tuple(group.ttft for group in groups)),
        _Comparison(ComparisonKind.TPOT, terms.max_tpot_ratio, evidence.tpot, tuple(group.tpot for group in groups)),
        _Comparison(
            ComparisonKind.ERRORS, terms.max_error_increase, evidence.errors, tuple(group.errors for group in groups)
        ),
        _Comparison(ComparisonKind.QUALITY, terms.max_quality_loss, evidence.quality),
    )
