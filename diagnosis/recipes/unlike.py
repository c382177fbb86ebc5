"""Comparison of declared facts within a pool: which pods differ from the rest. Not a recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from diagnosis.facts import PodObservation
from diagnosis.finding import Evidence
from diagnosis.recipe import Indication, Missing
from diagnosis.scene import Scene

Value = Callable[[PodObservation], str | None]

MIN_AGREEMENT = 2
"""Pods with a known value below which nothing can be compared."""


def unlike(
    scene: Scene, values: Mapping[str, Value], *, by_role: bool, across_rollouts: bool
) -> Iterator[Indication | Missing]:
    """Yield the pods of each pool (and role) that have another value than most of it.

    `across_rollouts`: also compare pods of two rollouts, which may differ on purpose.
    """
    for pool, pods in scene.pools.items():
        for group in _groups(pods, by_role=by_role, across_rollouts=across_rollouts):
            if len(group) < MIN_AGREEMENT:
                continue
            found: dict[str, list[Evidence]] = {}
            known = 0
            for name, value in values.items():
                held = {pod.address: text for pod in group if (text := value(pod)) is not None}
                known += len(held) >= MIN_AGREEMENT
                for address, evidence in _minority(name, held):
                    found.setdefault(address, []).append(evidence)
            for address, evidence_list in found.items():
                yield Indication(pool, address, tuple(evidence_list), 0.9)
            if not known:
                yield Missing(pool, "", f"{' and '.join(values)} of two pods or more are not known")


def _groups(pods: Sequence[PodObservation], *, by_role: bool, across_rollouts: bool) -> Iterator[list[PodObservation]]:
    groups: dict[tuple[str, str], list[PodObservation]] = {}
    for pod in pods:
        rollout = "" if across_rollouts or pod.build is None else pod.build.rollout or ""
        groups.setdefault((pod.role.value if by_role else "", rollout), []).append(pod)
    yield from groups.values()


def _minority(name: str, held: Mapping[str, str]) -> Iterator[tuple[str, Evidence]]:
    """Yield the holders of every value but the most frequent one; of all values where two are as frequent."""
    counts = Counter(held.values()).most_common()
    if len(counts) < 2:
        return
    normal = counts[0][0] if counts[0][1] > counts[1][1] else None
    for address, value in held.items():
        if value != normal:
            other = counts[0][0] if value != counts[0][0] else counts[1][0]
            yield address, Evidence(name, value, other, "pool", "", address)
