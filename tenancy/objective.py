"""Service levels: the tier of a tenant, and the latency objective of one request, which may be tighter.

Values. How an objective is met, and what becomes of a request whose objective cannot be, is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf

from msgspec import Struct


class OverloadAction(StrEnum):
    """What is done with a request whose objective cannot be met."""

    REJECT = "reject"
    DOWNGRADE = "downgrade"
    """A smaller model answers, where the tenant has named one."""
    RELAX = "relax"
    """It is served by the objective of the next lower tier."""


class UnattainableAction(StrEnum):
    """What is done with a request whose own prefill takes longer than its TTFT even on an idle engine."""

    SERVE = "serve"
    """It is served as soon as the fleet can, within the tier's longest wait."""
    REJECT = "reject"
    """It is rejected at once, as one that must not be repeated unchanged."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A service level. Objective: first token within `ttft_s` plus `ttft_uncached_factor` times the seconds that an
    idle engine needs for the uncached prompt, then a token every `tpot_s` on average.
    """

    name: str = "default"
    priority: int = 0
    """Higher goes first, as in the InferenceObjective of the Gateway API."""
    ttft_s: float = inf
    ttft_uncached_factor: float = 0.0
    tpot_s: float = inf
    weight: float = 1.0
    """Its tenants' share of what is left when tiers of equal priority compete."""
    guaranteed_share: float = 0.0
    """Guaranteed fraction of the fleet; other tiers may use it while it is idle."""
    max_queue_s: float = 30.0
    """In the gateway's queue."""
    on_overload: OverloadAction = OverloadAction.REJECT
    on_unattainable: UnattainableAction = UnattainableAction.SERVE
    is_best_effort: bool = False
    """Uses only what other tiers leave idle."""


DEFAULT_TIER = Tier()
"""The tier without a policy: no objective, so no request is rejected for one."""


ROUNDING = 1e-9
"""Of sums of seconds."""


class LatencyObjective(Struct, frozen=True, gc=False):
    """First token within `ttft_s + ttft_uncached_factor x cold seconds` of the arrival, then a token every `tpot_s`."""

    tier: Tier = DEFAULT_TIER
    ttft_s: float = inf
    ttft_uncached_factor: float = 0.0
    tpot_s: float = inf
    max_queue_s: float = inf
    """In the gateway's queue."""
    is_bound: bool = False
    """Whether there is an objective: without one a request neither waits nor is rejected for it."""

    def ttft_objective_s(self, cold_s: float) -> float:
        """Seconds from arrival to the first token of a prompt that takes an idle engine `cold_s`."""
        return self.ttft_s + self.ttft_uncached_factor * cold_s

    def is_met(self, *, own_s: float, first_token_s: float | None, took_s: float, tokens: int) -> bool:
        """Return whether a request met its objective, in seconds from its arrival, for a response of `tokens` tokens.

        `first_token_s` is None where none was observed, as in a response that is not streamed: all of it must then
        have come in time.
        """
        first_token_by_s, after_first = self.ttft_objective_s(own_s), max(0, tokens - 1)
        if first_token_s is None:
            first_token_s = max(0.0, took_s - after_first * self.tpot_s) if after_first else took_s
        if first_token_s > first_token_by_s:
            return False
        return not after_first or (took_s - first_token_s) / after_first <= self.tpot_s * (1 + ROUNDING)


NO_OBJECTIVE = LatencyObjective()


def objective_of(
    tier: Tier, *, ttft_s: float | None = None, tpot_s: float | None = None, max_queue_s: float | None = None
) -> LatencyObjective:
    """The objective of a tier, tightened by what the request asks for; a request loosens nothing."""
    if tier is DEFAULT_TIER and ttft_s is None and tpot_s is None and max_queue_s is None:
        return NO_OBJECTIVE
    is_stricter = ttft_s is not None and ttft_s < tier.ttft_s
    return LatencyObjective(
        tier,
        tier.ttft_s if ttft_s is None or not is_stricter else ttft_s,
        0.0 if is_stricter else tier.ttft_uncached_factor,
        tier.tpot_s if tpot_s is None else min(tpot_s, tier.tpot_s),
        tier.max_queue_s if max_queue_s is None else min(max_queue_s, tier.max_queue_s),
        is_bound=True,
    )


def relaxed(objective: LatencyObjective, tier: Tier) -> LatencyObjective:
    """Return the objective of a lower tier, except for what the request itself has set."""
    own = objective.tier
    return objective_of(
        tier,
        ttft_s=objective.ttft_s if objective.ttft_s < own.ttft_s else None,
        tpot_s=objective.tpot_s if objective.tpot_s < own.tpot_s else None,
    )
