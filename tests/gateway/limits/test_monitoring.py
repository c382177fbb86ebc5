"""Operators see what accounts have used: on the admin port by account, in metrics by tenant."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from gateway.limits.accounts import QuotaEnforcer
from gateway.limits.monitoring import QuotaMetrics, merge_accounts, show_accounts
from gateway.runtime.metric_families import TenantLabels
from routing.decision.router import Router
from routing.request import Api, Request
from scorers.registry import routings
from tenancy.limits.usage import LimitKind
from tenancy.tenants import Account, Caller, Quota, Tenant
from tests.gateway.limits.making import caller_of, quotas_of


async def used(quotas: QuotaEnforcer, caller: Caller, times: int = 1) -> None:
    for _ in range(times):
        await quotas.reserve(Request("r", Api.CHAT, "tiny", stream=True), caller)


def made() -> QuotaEnforcer:
    return quotas_of(Router(routings()["round-robin"]))


async def test_accounts_are_shown_with_what_they_have_used() -> None:
    """The last used first; of one tenant where one is asked for."""
    quotas, quota = made(), Quota(requests_per_min=10)
    accounts = (Account("search", quota), Account("search/user/ann", Quota(parallel_requests=2)))
    await used(quotas, Caller(Tenant("search"), accounts=accounts), 2)
    await used(quotas, caller_of(quota, "legal"))
    shown = show_accounts(quotas, None, 10)
    assert [account["account"] for account in shown] == ["legal", "search/user/ann", "search"]
    assert shown[2]["requests_in_flight"] == 2
    assert shown[2]["limits"]["requests"]["used"] == 2
    assert shown[2]["limits"]["requests"]["fully_available_in_s"] == 60.5
    assert [account["account"] for account in show_accounts(quotas, "search", 1)] == ["search/user/ann"]


async def test_workers_are_shown_as_one_gateway() -> None:
    """What one has used is not elsewhere for the other."""
    one, other = made(), made()
    await used(one, caller_of(Quota(requests_per_min=10)), 2)
    await used(other, caller_of(Quota(requests_per_min=10)), 3)
    lists = [show_accounts(quotas, None, 10) for quotas in (one, other)]
    lists[0][0]["limits"]["requests"] |= {"lease": 4.0, "used_elsewhere": 5.0}
    lists[1][0]["limits"]["requests"] |= {"lease": 5.0, "used_elsewhere": 4.0}
    [merged] = merge_accounts(lists, 10)
    assert (merged["requests_in_flight"], merged["limits"]["requests"]["used"]) == (5, 5)
    assert (merged["limits"]["requests"]["lease"], merged["limits"]["requests"]["used_elsewhere"]) == (9, 0)


async def test_metrics_distinguish_tenants_up_to_a_number() -> None:
    """Never users; and beyond that number they are `other`."""
    quotas, registry = made(), CollectorRegistry()
    registry.register(QuotaMetrics(quotas, TenantLabels(2)))
    for name in ("a", "b", "c", "d"):
        await used(quotas, caller_of(Quota(requests_per_min=10), name), 5)
        quotas.rejected[name, LimitKind.REQUESTS] += 1
    await used(quotas, caller_of(Quota(requests_per_min=10), "a/user/ann"), 9)
    reported = generate_latest(registry).decode()
    assert 'hearth_limit_rejections_total{limit="requests",tenant="a"} 1.0' in reported
    assert 'hearth_limit_rejections_total{limit="requests",tenant="other"} 2.0' in reported
    assert 'hearth_limit_used_ratio{limit="requests",tenant="a"} 0.5' in reported
    assert "ann" not in reported
