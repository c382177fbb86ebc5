"""Usage of quotas for operators: Prometheus metrics by tenant (never by user), and accounts for the admin API."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.limits.accounts import QuotaEnforcer, tenant_of_account
from gateway.runtime.metric_families import TenantLabels
from tenancy.limits.account_usage import AccountUsage
from tenancy.limits.usage import LimitKind

Family = CounterMetricFamily | GaugeMetricFamily


class QuotaMetrics(Collector):
    """The quota metrics of one gateway. Tenants without a label value of their own are summed."""

    def __init__(self, quotas: QuotaEnforcer, tenants: TenantLabels) -> None:
        self._quotas = quotas
        self._tenants = tenants

    def collect(self) -> Iterator[Family]:
        """All metric families."""
        quotas = self._quotas
        yield self._counter("hearth_limit_rejections", "Requests rejected, by limit.", quotas.rejected)
        yield self._counter("hearth_limit_terminated_streams", "Streams ended by a limit.", quotas.cut)
        yield self._used()
        yield GaugeMetricFamily(
            "hearth_limit_accounts", "Accounts of tenants and users in memory.", len(quotas.accounts)
        )
        leases = quotas.leases
        if leases is not None:
            words = "1 while limits are coordinated, 0 where this gateway applies local knowledge."
            yield GaugeMetricFamily("hearth_limit_coordinator_connected", words, float(not leases.is_partitioned))
            yield GaugeMetricFamily("hearth_limit_replicas", "Gateways that share limits.", leases.replicas)
            yield CounterMetricFamily(
                "hearth_limit_lease_requests", "Requests for quota leases.", leases.lease_requests
            )

    def _counter(self, name: str, words: str, counts: Mapping[tuple[str, LimitKind], int]) -> CounterMetricFamily:
        family = CounterMetricFamily(name, words, labels=("tenant", "limit"))
        shown: dict[tuple[str, str], int] = defaultdict(int)
        for (tenant, kind), count in counts.items():
            shown[self._tenants.of(tenant), kind.value] += count
        for labels, count in shown.items():
            family.add_metric(labels, count)
        return family

    def _used(self) -> GaugeMetricFamily:
        """Usage of tenants' own accounts: this gateway's part of shared limits."""
        words = "Part of a tenant's limit that this gateway has used."
        family = GaugeMetricFamily("hearth_limit_used_ratio", words, labels=("tenant", "limit"))
        shown: dict[tuple[str, str], float] = {}
        now_s = self._quotas.now_s()
        for account in list(self._quotas.accounts):
            if account.path == tenant_of_account(account.path):
                account.advance(now_s)
                for kind, meter in account.limit_usages.items():
                    labels = self._tenants.of(account.path), kind.value
                    shown[labels] = max(
                        shown.get(labels, 0.0), meter.counter.used / meter.limit if meter.limit else 1.0
                    )
        for labels, ratio in shown.items():
            family.add_metric(labels, ratio)
        return family


AccountView = dict[str, Any]


def show_accounts(quotas: QuotaEnforcer, tenant: str | None, most: int) -> list[AccountView]:
    """The accounts of one tenant, or of all, most recently used first, at most `most`."""
    now_s = quotas.now_s()
    wanted = (
        account
        for account in reversed(list(quotas.accounts))
        if tenant is None or tenant_of_account(account.path) == tenant
    )
    return [_show(account, now_s) for account in islice(wanted, most)]


def _show(account: AccountUsage, now_s: float) -> AccountView:
    account.advance(now_s)
    return {
        "account": account.path,
        "requests_in_flight": account.open,
        "limits": {
            kind.value: {
                "limit": meter.limit,
                "used": meter.counter.used,
                "used_elsewhere": meter.lease.elsewhere + meter.lease.gone if meter.lease is not None else 0.0,
                "lease": meter.cap,
                "fully_available_in_s": round(meter.frees_in_s(meter.counter.used, now_s), 1),
            }
            for kind, meter in account.limit_usages.items()
        },
    }


SUMMED = ("used", "lease")


def merge_accounts(lists: Iterable[list[AccountView]], most: int) -> list[AccountView]:
    """Sum the accounts of all workers. `used_elsewhere` then is the usage beyond this gateway."""
    merged: dict[str, AccountView] = {}
    for shown in (account for accounts in lists for account in accounts):
        known = merged.setdefault(shown["account"], shown)
        if known is shown:
            continue
        known["requests_in_flight"] += shown["requests_in_flight"]
        for kind, more in shown["limits"].items():
            same = known["limits"].setdefault(kind, more)
            if same is not more:
                for word in SUMMED:
                    same[word] += more[word]
                same["used_elsewhere"] = max(0.0, same["used_elsewhere"] - more["lease"])
                same["fully_available_in_s"] = max(same["fully_available_in_s"], more["fully_available_in_s"])
    return list(merged.values())[:most]
