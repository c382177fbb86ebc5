"""Puts together what a decision about each model reads: figures of all gateways, the policy's tiers, and pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

from gateway.scaling.exchange import FigureBook, TierRates
from gateway.scaling.figures import TierFigures
from gateway.scaling.pool_watch import PoolKey
from supply.load import NO_WORK, ModelLoad, OfferedWork, PoolLoad, TierLoad, TierObjective
from tenancy.limits.account_usage import SPAN_S, AccountUsage
from tenancy.limits.usage import LimitKind, TokenPrices
from tenancy.objective import DEFAULT_TIER, Tier

MIN_ARRIVAL_SECONDS = 10
"""Seconds of arrivals from which their variation is estimated."""

MIN_SCV, MAX_SCV = 0.25, 20.0

MAX_TIERS_PER_MODEL = 16

RATE_LIMITS = frozenset((LimitKind.REQUESTS, LimitKind.TOKENS, LimitKind.INPUT, LimitKind.UNCACHED))
"""Limits per minute that bound the input of rejected requests, whatever was answered."""


def model_loads(
    book: FigureBook,
    pools: Mapping[PoolKey, PoolLoad],
    tiers: Mapping[str, Tier],
    allowances: Callable[[str], Mapping[str, OfferedWork]],
    *,
    probability: float,
    completeness: float,
    now_s: float,
) -> list[ModelLoad]:
    """Return the load of each model that has a pool, in the order of their names.

    `allowances`: by model, the work per second that the limits of each tenant with rejected requests leave.
    """
    rates, queued = book.rates(), book.queued()
    held = book.held(now_s, {key[0] for key, pool in pools.items() if pool.ready})
    window_s, age_s = book.window_s(now_s), book.age_s(now_s)
    loads = []
    for model in sorted({key[0] for key in pools}):
        regions = {pool.pool: pool.region for key, pool in pools.items() if key[0] == model}
        rejected = book.rejected(model, now_s, allowances(model))
        names = {key[1] for key in (*rates, *queued) if key[0] == model} | set(rejected)
        chosen = sorted(names, key=lambda name: (-tiers.get(name, DEFAULT_TIER).priority, name))[:MAX_TIERS_PER_MODEL]
        loads.append(
            ModelLoad(
                model,
                tuple(
                    _tier_load(
                        objective_of_tier(tiers.get(name), name, probability),
                        rates.get((model, name), NO_RATES),
                        queued.get((model, name), TierFigures(model, name)),
                        book.arrivals((model, name)),
                        rejected.get(name, NO_WORK),
                        book.running.get((model, name), 0.0),
                        window_s,
                        regions,
                    )
                    for name in chosen
                ),
                tuple(load for key, load in sorted(pools.items()) if key[0] == model),
                window_s=window_s,
                age_s=age_s,
                completeness=completeness,
                held=held.get(model, 0),
            )
        )
    return loads


NO_RATES = TierRates()


def objective_of_tier(tier: Tier | None, name: str, probability: float) -> TierObjective:
    """Return a tier's objective as supply decisions read it; one without any where the policy has no such tier."""
    if tier is None:
        return TierObjective(name, probability=probability)
    return TierObjective(
        name,
        tier.priority,
        tier.ttft_s,
        tier.ttft_uncached_factor,
        tier.tpot_s,
        probability,
        is_best_effort=tier.is_best_effort,
    )


def _tier_load(
    objective: TierObjective,
    rates: TierRates,
    queued: TierFigures,
    arrivals: list[float],
    rejected: OfferedWork,
    running: float,
    window_s: float,
    regions: Mapping[str, str],
) -> TierLoad:
    """Return the load of one tier. `regions`: the region of each pool of the model."""
    mean = rates.prefill_tokens / rates.requests if rates.requests else 0.0
    square = rates.prefill_squares / rates.requests if rates.requests else 0.0
    return TierLoad(
        objective,
        admitted=OfferedWork(rates.requests, rates.prefill_tokens, rates.output_tokens).scaled(1 / window_s),
        rejected=rejected,
        queued=OfferedWork(queued.queued_requests, queued.queued_prefill_tokens, queued.queued_output_tokens),
        oldest_queued_s=queued.oldest_queued_s,
        running=running,
        context_tokens=rates.context_tokens / rates.answered if rates.answered else TierLoad().context_tokens,
        arrival_scv=_dispersion(arrivals),
        prefill_scv=_within(square / (mean * mean) - 1) if mean > 0 and rates.requests >= MIN_ARRIVAL_SECONDS else 1.0,
        attained=rates.met / rates.finished if rates.finished else None,
        finished=rates.finished,
        resident=tuple(
            (
                frozenset(pool for pool, region in regions.items() if region and region in names.split(",")),
                OfferedWork(*sums).scaled(1 / window_s),
            )
            for names, sums in rates.resident.items()
        ),
    )


def _dispersion(arrivals: list[float]) -> float:
    """Return variance over mean of arrivals per second: of many arrivals the squared variation of their distances."""
    mean = sum(arrivals) / len(arrivals) if arrivals else 0.0
    if len(arrivals) < MIN_ARRIVAL_SECONDS or mean <= 0:
        return 1.0
    return _within(sum((each - mean) ** 2 for each in arrivals) / len(arrivals) / mean)


def _within(scv: float) -> float:
    return min(max(scv, MIN_SCV), MAX_SCV)


def allowance_of(account: AccountUsage | None, admitted: OfferedWork, prices: TokenPrices, now_s: float) -> OfferedWork:
    """Return the work per second for which a tenant's rejected requests count: what its limits leave.

    Without a limit per minute on requests or input it is at most what was admitted: a number of parallel requests, a
    budget of a month or a free model alone do not bound a loop of new prompts.
    """
    if account is None or not account.limit_usages:
        return admitted
    account.advance(now_s)
    requests, prefill, output = inf, inf, inf
    if not account.limit_usages.keys() & RATE_LIMITS:
        requests, prefill, output = admitted.requests, admitted.prefill_tokens, admitted.output_tokens
    for kind, usage in account.limit_usages.items():
        per_s = usage.remaining / SPAN_S
        match kind:
            case LimitKind.REQUESTS:
                requests = min(requests, per_s)
            case LimitKind.TOKENS:
                prefill, output = min(prefill, per_s), min(output, per_s)
            case LimitKind.INPUT | LimitKind.UNCACHED:
                prefill = min(prefill, per_s)
            case LimitKind.OUTPUT:
                output = min(output, per_s)
            case LimitKind.BUDGET:
                prefill = min(prefill, _affordable(per_s, prices.input))
                output = min(output, _affordable(per_s, prices.output))
            case LimitKind.PARALLEL:
                requests = min(requests, 0.0 if usage.remaining <= 0 else requests)
    return OfferedWork(requests, prefill, output)


def _affordable(money: float, price: float) -> float:
    return money / price if price > 0 else 0.0 if money <= 0 else inf
