"""Counters by tenant: requests, tokens, rejections, objectives, and money by the prices of `model_list`.

The series of 10,000 tenants are those of the first hundred, and `other`. Bills come from usage records alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, SummaryMetricFamily

from gateway.config.models import ModelEntry
from gateway.observe.metrics.request_groups import RequestGroup
from gateway.runtime.metric_families import OTHER, Family, TenantLabels

MAX_PRICED_KEYS = 1000
"""Combinations of tenant and model with a cost of their own."""

KINDS = ("input", "cached_input", "output")
"""Values of the label `kind`: prompt tokens that were not cached, that were, and output tokens."""


@dataclass(slots=True)
class ObjectiveCounters:
    """Requests of one tenant and tier that have an objective."""

    requests: int = 0
    met: int = 0
    goodput_tokens: int = 0
    """Output tokens of those that met it."""


@dataclass(slots=True)
class TenantCounters:
    """Counters of one tenant."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_tokens: int = 0
    """Requests with a first token."""
    ttft_s: float = 0.0
    """Sum of their times to it."""
    rejections: Counter[str] = field(default_factory=Counter)
    objectives: dict[str, ObjectiveCounters] = field(default_factory=dict)
    """By tier."""


class TenantTotals:
    """Counts requests that have a tenant, and the cost of all."""

    def __init__(self, labels: TenantLabels, prices: Mapping[str, ModelEntry]) -> None:
        self._labels = labels
        self._prices = prices
        self.by_tenant: dict[str, TenantCounters] = {}
        self.cost: dict[tuple[str, str], list[float]] = {}
        """By tenant and model: money by `KINDS`."""

    def add(self, group: RequestGroup) -> None:
        """Count requests that have ended."""
        tenant = self._labels.of(group.tenant)
        if group.tenant is not None:
            held = self.by_tenant.get(tenant)
            if held is None:
                held = self.by_tenant[tenant] = TenantCounters()
            _add(held, group)
        for model, cost in group.costs(self._prices):
            sums = self._sums(tenant, model)
            for at in range(3):
                sums[at] += cost[at]

    def _sums(self, tenant: str, model: str) -> list[float]:
        sums = self.cost.get((tenant, model))
        if sums is None:
            key = (tenant, model) if len(self.cost) < MAX_PRICED_KEYS else (OTHER, OTHER)
            sums = self.cost.setdefault(key, [0.0, 0.0, 0.0])
        return sums

    def families(self) -> Iterator[Family]:
        """Return the metric families of this moment."""
        shown: tuple[tuple[str, str, Callable[[TenantCounters], float]], ...] = (
            ("hearth_tenant_requests", "Requests by tenant.", lambda held: held.requests),
            ("hearth_tenant_input_tokens", "Prompt tokens by tenant.", lambda held: held.prompt_tokens),
            (
                "hearth_tenant_cached_input_tokens",
                "Prompt tokens by tenant that engines had cached: part of the input tokens.",
                lambda held: held.cached_tokens,
            ),
            ("hearth_tenant_output_tokens", "Output tokens by tenant.", lambda held: held.output_tokens),
        )
        for name, words, value_of in shown:
            family = CounterMetricFamily(name, words, labels=("tenant",))
            for tenant, held in self.by_tenant.items():
                family.add_metric((tenant,), value_of(held))
            yield family
        ttft = SummaryMetricFamily(
            "hearth_tenant_time_to_first_token_seconds",
            "From arrival to the first token, by tenant.",
            labels=("tenant",),
        )
        rejections = CounterMetricFamily(
            "hearth_tenant_rejections", "Requests rejected, by tenant.", labels=("tenant", "reason")
        )
        for tenant, held in self.by_tenant.items():
            ttft.add_metric((tenant,), held.first_tokens, held.ttft_s)
            for reason, count in held.rejections.items():
                rejections.add_metric((tenant, reason), count)
        yield from (ttft, rejections, *self._objectives())
        cost = CounterMetricFamily(
            "hearth_cost", "Cost in the currency of the prices.", labels=("tenant", "model_name", "kind")
        )
        for key, sums in self.cost.items():
            for kind, amount in zip(KINDS, sums, strict=True):
                cost.add_metric((*key, kind), amount)
        yield cost

    def _objectives(self) -> Iterator[Family]:
        shown: tuple[tuple[str, str, Callable[[ObjectiveCounters], int]], ...] = (
            (
                "hearth_tenant_slo_requests",
                "Requests of the tenant with a latency objective.",
                lambda held: held.requests,
            ),
            (
                "hearth_tenant_slo_met_requests",
                "Requests of the tenant that met their latency objective.",
                lambda held: held.met,
            ),
            (
                "hearth_tenant_goodput_tokens",
                "Output tokens of the tenant's requests that met their latency objective.",
                lambda held: held.goodput_tokens,
            ),
        )
        for name, words, count_of in shown:
            family = CounterMetricFamily(name, words, labels=("tenant", "tier"))
            for tenant, tenant_held in self.by_tenant.items():
                for tier, held in tenant_held.objectives.items():
                    family.add_metric((tenant, tier), count_of(held))
            yield family


def _add(held: TenantCounters, group: RequestGroup) -> None:
    held.requests += group.requests
    held.prompt_tokens += group.input_tokens
    held.cached_tokens += group.cached_tokens
    held.output_tokens += group.output_tokens
    held.first_tokens += group.first_tokens
    held.ttft_s += group.ttft_s
    if group.reason is not None:
        held.rejections[group.reason.value] += group.requests
    if group.slo_met is None:
        return
    objective = held.objectives.get(group.tier)
    if objective is None:
        objective = held.objectives[group.tier] = ObjectiveCounters()
    objective.requests += group.requests
    if group.slo_met:
        objective.met += group.requests
        objective.goodput_tokens += group.output_tokens
