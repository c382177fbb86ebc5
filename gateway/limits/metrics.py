"""Shows to Prometheus how limits stand: by tenant, of whom so many are told apart, never by user."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.limits.accounts import Quotas, tenant_of
from tenancy.limits.usage import Kind

Family = CounterMetricFamily | GaugeMetricFamily

OTHER = "other"

MOST_TENANTS = 100


class LimitsExposition(Collector):
    """A gateway's figures."""

    def __init__(self, quotas: Quotas, *, most_tenants: int = MOST_TENANTS) -> None:
        self._quotas = quotas
        self._most_tenants = most_tenants
        self._named: set[str] = set()

    def collect(self) -> Iterator[Family]:
        """All families of this moment."""
        quotas = self._quotas
        yield self._counter("hearth_limit_refused", "Requests refused for want of room, by limit.", quotas.refused)
        yield self._counter("hearth_limit_cut", "Streams that a limit has ended, by limit.", quotas.cut)
        yield self._used()
        yield GaugeMetricFamily("hearth_limit_accounts", "Accounts in memory.", len(quotas.books))
        keeper = quotas.keeper
        if keeper is not None:
            words = "1 where shared limits are shared, 0 where this gateway goes by what it knows."
            yield GaugeMetricFamily("hearth_limit_sharing", words, float(not keeper.is_apart))
            yield GaugeMetricFamily("hearth_limit_replicas", "Gateways that share limits.", keeper.replicas)
            yield CounterMetricFamily("hearth_limit_asks", "Asks for slices of shared limits.", keeper.asked)

    def _counter(self, name: str, words: str, counts: Mapping[tuple[str, Kind], int]) -> CounterMetricFamily:
        family = CounterMetricFamily(name, words, labels=("tenant", "limit"))
        shown: dict[tuple[str, str], int] = defaultdict(int)
        for (tenant, kind), count in counts.items():
            shown[self._name(tenant), kind.value] += count
        for labels, count in shown.items():
            family.add_metric(labels, count)
        return family

    def _used(self) -> GaugeMetricFamily:
        """Of tenants' own accounts; this gateway's part of what is shared."""
        words = "Part of a tenant's limit that this gateway has used."
        family = GaugeMetricFamily("hearth_limit_used_ratio", words, labels=("tenant", "limit"))
        shown: dict[tuple[str, str], float] = {}
        now_s = self._quotas.now_s()
        for book in list(self._quotas.books):
            if book.path == tenant_of(book.path):
                book.advance(now_s)
                for kind, meter in book.meters.items():
                    labels = self._name(book.path), kind.value
                    shown[labels] = max(shown.get(labels, 0.0), meter.memory.used / meter.limit if meter.limit else 1.0)
        for labels, ratio in shown.items():
            family.add_metric(labels, ratio)
        return family

    def _name(self, tenant: str) -> str:
        if tenant not in self._named:
            if len(self._named) >= self._most_tenants:
                return OTHER
            self._named.add(tenant)
        return tenant
