"""Which pods of a pool should go first when its count falls: those that are drained, then the coldest. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodLoad:
    """One pod, as its removal is weighed."""

    name: str
    engines: int = 1
    is_drained: bool = False
    """It is sent no new requests."""
    is_ready: bool = True
    running: int = 0
    """Requests that it would lose."""
    cached_bytes: int = 0
    """Of prompts, that others would have to compute again."""
    cost: int | None = None
    """The cost that it was given before; None: none."""


def deletion_costs(pods: Iterable[PodLoad], engines: int) -> dict[str, int]:
    """Return a cost below zero for each pod that is to go when a pool falls to this many engines, the first the lowest.

    Pods that are not named keep the default, zero. Drained pods go first, then those that are not ready, then those
    with the fewest requests, then those with the least cached. An order that was given before stays while it may, so
    that objects change seldom. No pod is named whose removal would leave fewer engines.
    """
    there = list(pods)
    excess = sum(pod.engines for pod in there) - engines
    going: list[str] = []
    for pod in sorted(there, key=_order):
        if pod.engines <= excess:
            excess -= pod.engines
            going.append(pod.name)
    return {name: at - len(going) for at, name in enumerate(going)}


def _order(pod: PodLoad) -> tuple[bool, bool, int, int, int, str]:
    return not pod.is_drained, pod.is_ready, pod.cost or 0, pod.running, pod.cached_bytes, pod.name
