"""What could be changed about engines beside their number, from findings and desired engines. Advice only.

Actuators, which other packages bring, say how they would carry an action out; nothing here or in the gateway acts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from supply.desired import SupplyReason

MAX_ACTIONS = 64
"""Actions proposed at one time."""

MAX_PODS = 16
"""Pods named by one action."""


class ActionKind(StrEnum):
    """What would be changed; stable codes."""

    PARALLELISM = "parallelism"
    """Other sizes of tensor, data or expert parallelism."""
    PRECISION = "precision"
    """Another number format of weights or KV cache."""
    GRAPH_PREWARM = "graph_prewarm"
    """Compiled graphs and their caches prepared before an engine starts."""
    EXPERT_REBALANCE = "expert_rebalance"
    """Experts spread anew over ranks, or more redundant ones."""
    SLEEP = "sleep"
    """Pods of another model put to sleep, so that this pool's may have their GPUs."""


class PoolCount(Protocol):
    """Desired and present engines of one model, pool and role."""

    @property
    def model(self) -> str: ...
    @property
    def pool(self) -> str: ...
    @property
    def engines(self) -> int: ...
    @property
    def unbounded(self) -> int: ...
    @property
    def present(self) -> int: ...
    @property
    def reason(self) -> str: ...


@dataclass(frozen=True, slots=True)
class SeenFault:
    """A finding of diagnosis, as far as actions follow from it."""

    recipe: str
    pool: str
    pods: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProposedAction:
    """One action on one pool."""

    kind: ActionKind
    pool: str
    reason: str
    """Name of the recipe, or the reason of the pool's desired engines."""
    pods: tuple[str, ...] = ()
    """URLs; empty: those of the pool."""
    model: str = ""
    """Empty where a finding names only the pool."""
    engines: int = 0
    """How many it concerns; 0 where that is not known."""
    giving_pool: str = ""
    """With `SLEEP`: the pool whose pods would sleep."""


@runtime_checkable
class Actuator(Protocol):
    """Carries actions out, in a later version: this one asks only what it would do.

    Found by entry points of the group `hearth.actuators`, which name an instance or a class without arguments.
    """

    name: str

    def plan(self, action: ProposedAction) -> str | None:
        """Return in a line what it would do, or None where it does not carry out such an action. Must change nothing.

        Called in a thread. An exception counts as None and is logged.
        """
        ...


KIND_OF_RECIPE = {
    "hot_expert": ActionKind.EXPERT_REBALANCE,
    "idle_ranks": ActionKind.PARALLELISM,
    "kv_pressure": ActionKind.PRECISION,
}
"""By recipe, the action that may mend it."""

BOUNDED = frozenset((SupplyReason.NOT_GRANTED, SupplyReason.MAX_ENGINES, SupplyReason.BUDGET))
"""Reasons for which a pool stays smaller than its load needs."""


def propose_actions(pools: Sequence[PoolCount], faults: Iterable[SeenFault]) -> tuple[ProposedAction, ...]:
    """Return the actions that findings and desired engines suggest, in a fixed order, `MAX_ACTIONS` at most."""
    found = [
        ProposedAction(kind, fault.pool, fault.recipe, fault.pods[:MAX_PODS])
        for fault in faults
        if (kind := KIND_OF_RECIPE.get(fault.recipe)) is not None
    ]
    found += [
        ProposedAction(ActionKind.GRAPH_PREWARM, pool.pool, pool.reason, model=pool.model, engines=more)
        for pool in pools
        if (more := pool.engines - pool.present) > 0
    ]
    found += _sleepers(pools)
    return tuple(sorted(found, key=lambda one: (one.kind, one.pool, one.model, one.reason))[:MAX_ACTIONS])


def _sleepers(pools: Sequence[PoolCount]) -> Iterable[ProposedAction]:
    """Yield for each pool that may not grow the pool of another model with most engines to spare."""
    for pool in pools:
        missing = pool.unbounded - pool.present
        if pool.reason not in BOUNDED or missing <= 0:
            continue
        spare = [(other.present - other.engines, other) for other in pools if other.model != pool.model]
        engines, giving = max(spare, key=lambda one: (one[0], one[1].pool), default=(0, pool))
        if engines > 0:
            count = min(missing, engines)
            yield ProposedAction(
                ActionKind.SLEEP, pool.pool, pool.reason, model=pool.model, engines=count, giving_pool=giving.pool
            )
