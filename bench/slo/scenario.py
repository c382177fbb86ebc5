"""What a scenario is: an engine fleet, tiers with their objectives, tenants with their traffic. Values only.

`bench.slo.reading` reads them from files, `bench.slo.traffic` draws their requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bench.slo.lengths import Lengths
from simulator.profile import Profile
from tenancy.objective import Tier


@dataclass(frozen=True, slots=True)
class Bursts:
    """Every `every_s` a tenant asks `times` as often for `for_s`; in between as always."""

    every_s: float
    for_s: float
    times: float

    def factor(self, at_s: float) -> float:
        """The current load factor."""
        return self.times if at_s % self.every_s < self.for_s else 1.0


@dataclass(frozen=True, slots=True)
class Customer:
    """One tenant and what it asks for."""

    name: str
    tier: str
    share: float
    """Its rate, as a share of the scenario's load. Shares need not add up to 1: a flood comes on top."""
    weight: float
    """Its part of what its tier gets, where that is not enough for all."""
    prompt: Lengths
    answer: Lengths
    bursts: Bursts | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """An engine dies, with all that runs on it, and comes back empty. Times as shares of the scenario's length."""

    engine: int
    at: float
    back: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """`load` is by the best load of the scenario `base`: what is the right load for a fleet is measured, not known."""

    name: str
    about: str
    base: str
    load: float
    tiers: Mapping[str, Tier]
    tenants: tuple[Customer, ...]
    until: tuple[str, int]
    """(tier, requests): it lasts until this many requests of the tier have come."""
    engines: int = 4
    profile: Profile = field(default_factory=Profile)
    loss: Loss | None = None
    trace: str | None = None
    """Lengths are drawn from this recording instead of the stated ones: a file in the folder that TRACES names."""
    wanted: Mapping[str, float] = field(default_factory=dict)
    """What is expected of a gateway here: attainment by tier, `of_best` the goodput, `rejected` at most."""

    def lasting(self, requests: int | None) -> Scenario:
        """The same until this many requests of the counted tier have come."""
        return self if requests is None else replace(self, until=(self.until[0], requests))
