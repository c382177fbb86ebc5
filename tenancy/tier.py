"""The service level that a tenant has bought. A value; knows neither tenants nor how a promise is kept."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf


class Overload(StrEnum):
    """What becomes of a request whose promise cannot be kept."""

    REJECT = "reject"
    DOWNGRADE = "downgrade"
    """A smaller model answers, where the tenant has named one."""
    RELAX = "relax"
    """It is served by the promise of the next lower tier."""


class Unattainable(StrEnum):
    """What becomes of a request whose own prefill takes longer than its TTFT, on an idle engine too."""

    SERVE = "serve"
    """It is served as soon as the fleet can, within the tier's longest wait."""
    REJECT = "reject"
    """It is rejected at once, as one that must not be repeated unchanged."""


@dataclass(frozen=True, slots=True)
class Tier:
    """What is promised: first token within `ttft_s + ttft_per_cold x` the seconds that the request's own cold prompt
    takes an idle engine, then a token every `tpot_s` on average.
    """

    name: str = "usual"
    priority: int = 0
    """Who goes first: higher is better, as in the InferenceObjective of the Gateway API."""
    ttft_s: float = inf
    ttft_per_cold: float = 0.0
    tpot_s: float = inf
    weight: float = 1.0
    """Its tenants' share of what is left when tiers of equal priority compete."""
    reserve: float = 0.0
    """Fraction of the fleet that is its own whenever it asks; others may borrow it meanwhile."""
    longest_wait_s: float = 30.0
    """In the gateway's queue."""
    on_overload: Overload = Overload.REJECT
    unattainable: Unattainable = Unattainable.SERVE
    is_batch: bool = False
    """Fills what others leave idle, and is never in anybody's way."""


USUAL = Tier()
"""Everybody's, where no policy names tiers: nothing is promised, so nothing is refused for a promise's sake."""
