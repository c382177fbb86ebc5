"""Sums a run up by tier: who was kept his promise, who was refused, how fairly, and what was computed for nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.slo.fates import Fate
from bench.slo.virtual import Run
from simulator.spread import at_share


@dataclass(frozen=True, slots=True)
class TierFigures:
    """One tier in one run."""

    offered: int
    met: int
    refused: int
    """Offered requests that ended without an answer, however often they were tried."""
    offered_tokens: int
    met_tokens: int

    @property
    def attainment(self) -> float:
        """Met over offered: a refusal is a miss."""
        return self.met / self.offered if self.offered else 1.0


@dataclass(frozen=True, slots=True)
class Figures:
    """One run."""

    tiers: Mapping[str, TierFigures]
    met_per_s: float
    met_tokens_per_s: float
    reasons: Mapping[str, int]
    """Of attempts that were refused."""
    refusal_p50_s: float
    refusal_p99_s: float
    wasted: float
    """The share of computed tokens that was in nobody's answer."""


def figures_of(run: Run) -> Figures:
    """Sum a run up."""
    scenario = run.job.scenario
    tiers = {name: _tier(run, name) for name in scenario.tiers}
    waits = sorted(no.after_s for fate in run.fates for no in fate.noes)
    delivered = sum(fate.tokens - fate.cached_tokens for fate in run.fates if fate.is_answered)
    return Figures(
        tiers=tiers,
        met_per_s=sum(tier.met for tier in tiers.values()) / run.length_s,
        met_tokens_per_s=sum(tier.met_tokens for tier in tiers.values()) / run.length_s,
        reasons=Counter(no.reason for fate in run.fates for no in fate.noes),
        refusal_p50_s=at_share(waits, 0.5),
        refusal_p99_s=at_share(waits, 0.99),
        wasted=1.0 - delivered / run.computed_tokens,
    )


def _tier(run: Run, name: str) -> TierFigures:
    scenario = run.job.scenario
    fates: Sequence[Fate] = [fate for fate in run.fates if fate.offered.tenant.tier == name]
    met = [fate for fate in fates if fate.is_met(scenario.tiers[name], scenario.profile)]
    return TierFigures(
        offered=len(fates),
        met=len(met),
        refused=sum(not fate.is_answered for fate in fates),
        offered_tokens=sum(fate.tokens for fate in fates),
        met_tokens=sum(fate.tokens for fate in met),
    )
