"""Desired engines of each pool: the cheapest mix that keeps each tier's objectives with its probability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from routing.facts import Role
from supply.load import ModelLoad
from supply.policy import SupplyPolicy


class SupplyReason(StrEnum):
    """What determined the figure of a pool; stable codes."""

    LOAD = "load"
    """Offered work and the tiers' objectives."""
    FORECAST = "forecast"
    """More than the present load needs, because of the forecast."""
    BACKLOG = "backlog"
    """Queued work has to be caught up."""
    FROM_ZERO = "from_zero"
    """A request waits and the model has no engine."""
    IDLE = "idle"
    """Quiet for long enough: zero."""
    MIN_ENGINES = "min_engines"
    MAX_ENGINES = "max_engines"
    STEP = "max_step_per_minute"
    BUDGET = "engine_hours_per_day"
    MIN_STAY = "min_stay"
    """Engines have not stayed long enough, or the lower figure has not held long enough."""
    STALE = "stale_figures"
    """Figures are too old: the count is held."""
    PARTIAL = "partial_figures"
    """Figures of some gateways are missing: the count is held."""
    NOT_GRANTED = "not_granted"
    """The cluster grants no engines: the figure is not raised further."""
    OFF = "off"


@dataclass(frozen=True, slots=True)
class SupplyTerm:
    """One line of an explanation: a name, a figure and its unit."""

    name: str
    value: float
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.value:.4g} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True)
class DesiredPool:
    """The figure of one model, pool and role."""

    model: str
    pool: str
    role: Role
    engines: int
    """What the cluster should have, after hysteresis and guard rails."""
    unbounded: int
    """What the load needs, before hysteresis and guard rails."""
    present: int
    """Ready and starting engines when this was computed."""
    reason: SupplyReason
    tiers: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Engines by tier; their sum is `engines`. Spare and held engines are the tier `""`."""
    terms: tuple[SupplyTerm, ...] = ()
    """How the figure was made, in the order of the computation."""
    price_per_hour: float = 0.0
    """Of `engines` together."""
    is_active: bool = True
    """Whether the pool is needed at all: KEDA's IsActive."""


@dataclass(frozen=True, slots=True)
class DesiredFleet:
    """The answer for one model."""

    model: str
    pools: tuple[DesiredPool, ...] = ()
    is_known: bool = True
    """False while figures are stale or partial: a scaler is answered UNAVAILABLE then."""
    short: tuple[str, ...] = ()
    """Tiers whose objective the figure cannot keep (maximum, budget, or a cluster that grants nothing)."""
    price_per_hour: float = 0.0


@dataclass(frozen=True, slots=True)
class SupplyState:
    """What a decision remembers. A value: gateways share it as JSON (`encode_state`, `decode_state`)."""

    pools: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


def desired_engines(
    load: ModelLoad, policy: SupplyPolicy, state: SupplyState, now_s: float
) -> tuple[DesiredFleet, SupplyState]:
    """Return desired engines by pool and role, and the state for the next call.

    `now_s` is seconds since the epoch (UTC): the forecast uses the time of the week. The same inputs give the same
    answer on every gateway.
    """
    raise NotImplementedError
