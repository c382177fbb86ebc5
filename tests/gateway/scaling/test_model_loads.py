"""What rejected requests of a tenant count for: what its limits leave, never without bound."""

from __future__ import annotations

from math import inf

import pytest

from gateway.scaling.model_loads import allowance_of
from supply.load import OfferedWork, RejectedWork, count_rejected
from tenancy.limits.account_usage import AccountUsage
from tenancy.limits.usage import FREE, TokenPrices
from tenancy.tenants import Quota

ADMITTED = OfferedWork(2.0, 2_000.0, 400.0)


def allowance(quota: Quota, prices: TokenPrices = FREE) -> OfferedWork:
    return allowance_of(AccountUsage("acme", quota), ADMITTED, prices, 0.0)


@pytest.mark.parametrize(
    ("quota", "prices"),
    [
        (Quota(), FREE),
        (Quota(parallel_requests=4), FREE),
        (Quota(budget=1e6, budget_period_s=2_592_000.0), FREE),
        (Quota(budget=1e6, budget_period_s=2_592_000.0), TokenPrices(1e-6, 1e-6, 1e-6)),
        (Quota(output_tokens_per_min=600_000), FREE),
    ],
)
def test_a_loop_of_new_prompts_counts_within_what_was_admitted(quota: Quota, prices: TokenPrices) -> None:
    """Where no limit per minute bounds its input."""
    loop = [RejectedWork("acme", "gold", face, OfferedWork(1.0, 100_000.0, 0.0)) for face in range(250)]
    counted = count_rejected(loop, window_s=1.0, allowances={"acme": allowance(quota, prices)})
    assert counted["gold"].prefill_tokens <= 1.001 * ADMITTED.prefill_tokens


def test_limits_per_minute_are_the_bound_where_there_are_any() -> None:
    """More than was admitted, if they leave it."""
    assert allowance(Quota(tokens_per_min=600_000)) == OfferedWork(inf, 10_000.0, 10_000.0)
    assert allowance(Quota(requests_per_min=600, parallel_requests=4)).requests == 10.0
