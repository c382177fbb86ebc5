"""Sums a run up by tier: met objectives, rejections, fairness, and wasted work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from bench.slo.fairness import fair_parts, jain_index
from bench.slo.fates import RequestResult
from bench.slo.scenario import Customer, Scenario
from simulator.spread import at_share

OUTPUT_PRICE = 2.0
"""A token of a response is as much service as this many of a prompt, as in the paper on the virtual token counter."""


@dataclass(frozen=True, slots=True)
class TierFigures:
    """One tier in one run, or the medians of several."""

    attainment: float
    """Met over offered: a refusal is a miss."""
    attainment_tokens: float
    """The same, each request counting as many times as it has tokens."""
    rejected: float
    """The share of the offered that ended with a refusal, however often they were tried."""
    jain: float
    """Of what each tenant was served by what was its fair part of all that its tier was served, while there was load:
    what begins after the last arrival is no longer scarce.
    """
    dry_s: float
    """The longest time in which one of its tenants got no first token."""
    modest_rejected: float
    """How many were refused of tenants that asked for less than their part."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One run, or the medians of several."""

    tiers: Mapping[str, TierFigures]
    met_per_s: float
    met_tokens_per_s: float
    rejection_p50_s: float
    rejection_p99_s: float
    wasted: float
    """The share of computed tokens that was in no response."""
    reasons: Mapping[str, float]
    """Of attempts that were refused or lost, by the offered requests."""

    @property
    def rejected(self) -> float:
        return sum(tier.rejected for tier in self.tiers.values())


def figures_of(
    scenario: Scenario, fates: Sequence[RequestResult], length_s: float, computed_tokens: int | None
) -> Figures:
    """Sum a run up. `computed_tokens`: by all engines; None if unknown."""
    met = [result for result in fates if result.is_met(scenario.tiers[result.offered.tenant.tier], scenario.profile)]
    waits = sorted(no.after_s for result in fates for no in result.noes if not no.started)
    delivered = sum(result.tokens - result.cached_tokens for result in fates if result.is_answered)
    reasons = Counter(no.reason for result in fates for no in result.noes)
    return Figures(
        tiers={name: _tier(scenario, name, fates, length_s) for name in scenario.tiers},
        met_per_s=len(met) / length_s,
        met_tokens_per_s=sum(result.tokens for result in met) / length_s,
        rejection_p50_s=at_share(waits, 0.5),
        rejection_p99_s=at_share(waits, 0.99),
        wasted=1.0 - delivered / computed_tokens if computed_tokens else 0.0,
        reasons={reason: count / len(fates) for reason, count in reasons.items()},
    )


def middle_figures(several: Sequence[Figures]) -> Figures:
    """The median of each figure by itself."""

    def middle(figure: Callable[[Figures], float]) -> float:
        return median(figure(one) for one in several)

    def tier(name: str) -> TierFigures:
        return TierFigures(
            *(
                middle(lambda one, field=field: getattr(one.tiers[name], field))  # type: ignore[misc]
                for field in TierFigures.__dataclass_fields__
            )
        )

    return Figures(
        tiers={name: tier(name) for name in several[0].tiers},
        met_per_s=middle(lambda one: one.met_per_s),
        met_tokens_per_s=middle(lambda one: one.met_tokens_per_s),
        rejection_p50_s=middle(lambda one: one.rejection_p50_s),
        rejection_p99_s=middle(lambda one: one.rejection_p99_s),
        wasted=middle(lambda one: one.wasted),
        reasons={
            reason: median(one.reasons.get(reason, 0.0) for one in several)
            for reason in sorted({reason for one in several for reason in one.reasons})
        },
    )


def _tier(scenario: Scenario, name: str, fates: Sequence[RequestResult], length_s: float) -> TierFigures:
    mine = [result for result in fates if result.offered.tenant.tier == name]
    met = [result for result in mine if result.is_met(scenario.tiers[name], scenario.profile)]
    tenants = {tenant.name: tenant for tenant in scenario.tenants if tenant.tier == name and tenant.share}
    by_tenant = {one: [result for result in mine if result.offered.tenant.name == one] for one in tenants}
    rejected = {one: sum(result.is_rejected for result in its) for one, its in by_tenant.items()}
    demand = {one: sum(map(_service, its)) for one, its in by_tenant.items()}
    served = {one: sum(_service(result) for result in its if result.is_answered) for one, its in by_tenant.items()}
    modest = _modest(tenants, demand, sum(served.values()))
    under_load = {
        one: sum(_service(result) for result in its if result.started_by(length_s)) for one, its in by_tenant.items()
    }
    return TierFigures(
        attainment=len(met) / max(1, len(mine)),
        attainment_tokens=sum(result.tokens for result in met) / max(1, sum(result.tokens for result in mine)),
        rejected=sum(rejected.values()) / max(1, len(mine)),
        jain=_jain(tenants, demand, under_load),
        dry_s=max((_dry_s(its, length_s) for its in by_tenant.values()), default=0.0),
        modest_rejected=sum(rejected[one] for one in modest),
    )


def _service(result: RequestResult) -> float:
    offered = result.offered
    return offered.prompt_tokens - result.cached_tokens + OUTPUT_PRICE * offered.answer_tokens


def _jain(tenants: Mapping[str, Customer], demand: Mapping[str, float], served: Mapping[str, float]) -> float:
    weight = {one: tenant.weight for one, tenant in tenants.items()}
    fair = fair_parts(demand, weight, sum(served.values()))
    return jain_index([served[one] / part for one, part in fair.items() if part])


def _modest(tenants: Mapping[str, Customer], demand: Mapping[str, float], in_all: float) -> list[str]:
    """Who asked for less than is his by weight alone."""
    weights = sum(tenant.weight for tenant in tenants.values())
    return [one for one, tenant in tenants.items() if demand[one] < in_all * tenant.weight / weights]


def _dry_s(fates: Sequence[RequestResult], length_s: float) -> float:
    firsts = (result.first_token_s for result in fates)
    within = sorted(at_s for at_s in firsts if at_s is not None and at_s < length_s)
    return max(later - sooner for sooner, later in pairwise([0.0, *within, length_s]))
