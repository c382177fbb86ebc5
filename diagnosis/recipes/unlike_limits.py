"""Pods of one pool were started with unlike limits: one takes far fewer requests at a time, or shorter ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from diagnosis.facts import EngineFlags, PodObservation
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene

FACTOR = 2.0
"""Between two limits on sequences from which they are unlike: a quarter less may have been tried for KV pressure."""

MIN_WAITING = 1.0
"""Mean requests that wait on a pod of the lower limit, from which it slows requests."""

LIMITS: Mapping[str, tuple[Callable[[EngineFlags], int | None], float]] = {
    "--max-num-seqs": (lambda flags: flags.max_num_seqs, FACTOR),
    "--max-model-len": (lambda flags: flags.max_model_len, 1.0),
}
"""By option: its value, and the factor beyond which two values are unlike."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare limits of pods of one role and rollout with those that most of them have."""
    for pool, pods in scene.pools.items():
        groups: dict[tuple[str, str], list[PodObservation]] = {}
        for pod in pods:
            rollout = "" if pod.build is None else pod.build.rollout or ""
            groups.setdefault((pod.role.value, rollout), []).append(pod)
        for group in groups.values():
            yield from _compared(pool, group)


def _compared(pool: str, group: Sequence[PodObservation]) -> Iterator[Indication | Missing]:
    if len(group) < 2:
        return
    found: dict[str, list[Evidence]] = {}
    known = 0
    for name, (read, factor) in LIMITS.items():
        held = {pod.address: value for pod in group if pod.flags is not None and (value := read(pod.flags)) is not None}
        known += len(held) >= 2
        for address, value, normal in _unlike(held, factor):
            found.setdefault(address, []).append(Evidence(name, float(value), float(normal), "pool", "", address))
    for pod in group:
        if evidence := found.get(pod.address):
            yield Indication(pool, pod.address, tuple(evidence), 0.9, _severity(pod, evidence))
    if not known:
        yield Missing(pool, "", f"{' and '.join(LIMITS)} of two pods or more are not known")


def _unlike(held: Mapping[str, int], factor: float) -> Iterator[tuple[str, int, int]]:
    """Yield address, value and the most frequent value of each pod that differs; of all where two are as frequent."""
    counts = Counter(held.values()).most_common()
    if len(counts) < 2:
        return
    normal, is_tied = counts[0][0], counts[0][1] == counts[1][1]
    for address, value in held.items():
        other = normal if value != normal or not is_tied else counts[1][0]
        if value != other and max(value, other) >= factor * min(value, other):
            yield address, value, other


def _severity(pod: PodObservation, evidence: Sequence[Evidence]) -> Severity:
    """Return how bad it is: requests that wait on a pod that takes fewer than its peers are slower for it."""
    waits = any(engine.waiting is not None and engine.waiting.mean >= MIN_WAITING for engine in pod.engines)
    takes_fewer = any(_is_lower(each) for each in evidence if each.name == "--max-num-seqs")
    return Severity.DEGRADING if waits and takes_fewer else Severity.ADVICE


def _is_lower(evidence: Evidence) -> bool:
    value, normal = evidence.value, evidence.compared
    return isinstance(value, float) and isinstance(normal, float) and value < normal


RECIPE = Recipe(
    name="unlike_limits",
    title="Unlike limits in one pool",
    question=Question.PREFILL,
    severity=Severity.ADVICE,
    symptom="Requests wait on one pod while its peers have room, or only this pod rejects long prompts.",
    looks_at=(
        "`--max-num-seqs` and `--max-model-len` are compared within each pool, role and rollout: sequences that differ "
        "by a factor of two or more, and any other length. It slows requests where some wait on a pod that takes fewer."
    ),
    cause="The named pods were started with another limit than the rest, or their memory allowed for no more.",
    first_step="Start the named pods with the limit that most pods have (the higher one where none has a majority).",
    helped="No request waits on the named pods while others have room.",
    wrong_if="Their GPUs have less memory: then they belong into a pool of their own.",
    look=look,
    explains=("slower_than_peers",),
)
