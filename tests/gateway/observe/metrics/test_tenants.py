"""Tenants have bounded series that never move, and money as exact as the prices."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from gateway.config.models import ModelEntry
from gateway.observe.metrics.request_groups import single_group
from gateway.observe.metrics.tenants import TenantTotals
from gateway.pipeline.record import Outcome
from gateway.runtime.metric_families import OTHER, Family, TenantLabels
from routing.rejection import Reason
from tests.gateway.samples import a_request, an_outcome

PRICES = {"tiny": ModelEntry("tiny", 2.0, 10.0, 1.0)}


class Shown(Collector):
    """Totals, and what Prometheus reads of them."""

    def __init__(self, *outcomes: Outcome, max_tenants: int = 100) -> None:
        self.totals = TenantTotals(TenantLabels(max_tenants), PRICES)
        for outcome in outcomes:
            self.totals.add(single_group(outcome))
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterator[Family]:
        return self.totals.families()

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


def test_a_tenant_keeps_its_series() -> None:
    """The first have one for good, whoever comes later; the rest share `other`, in every metric."""
    labels = TenantLabels(2)
    assert [labels.of(name) for name in ("a", "b", "c", "a", "d", "b")] == ["a", "b", OTHER, "a", OTHER, "b"]
    assert labels.of(None) == ""
    shown = Shown(*(an_outcome(tenant=name) for name in ("a", "b", "c", "d")), max_tenants=2)
    assert shown.value("hearth_tenant_requests_total", tenant=OTHER) == 2
    assert shown.value("hearth_cost_total", tenant=OTHER, model_name="tiny", kind="output") == 220.0


def test_money_is_counted_by_kind_of_token() -> None:
    """Cached input apart; without a policy the tenant is empty."""
    shown = Shown(an_outcome(), an_outcome(), an_outcome(tenant=None))
    costs = {
        kind: shown.value("hearth_cost_total", tenant="legal", model_name="tiny", kind=kind)
        for kind in ("input", "cached_input", "output")
    }
    assert costs == {"input": 16.0, "cached_input": 192.0, "output": 220.0}
    assert shown.value("hearth_cost_total", tenant="", model_name="tiny", kind="output") == 110.0


def test_rejections_and_objectives_of_a_tenant_are_counted() -> None:
    """By reason and by tier; a miss is a request with an objective that was not met."""
    shown = Shown(
        an_outcome(tier="gold", slo_met=True),
        an_outcome(tier="gold", slo_met=False, status=429, reason=Reason.OVERLOADED, usage=None, ttft_s=None),
        an_outcome(status=429, reason=Reason.RATE_LIMITED_TOKENS, usage=None, ttft_s=None),
    )
    assert shown.value("hearth_tenant_rejections_total", tenant="legal", reason="overloaded") == 1
    assert shown.value("hearth_tenant_rejections_total", tenant="legal", reason="rate_limited_tokens") == 1
    assert shown.value("hearth_tenant_slo_requests_total", tenant="legal", tier="gold") == 2
    assert shown.value("hearth_tenant_slo_met_requests_total", tenant="legal", tier="gold") == 1
    assert shown.value("hearth_tenant_goodput_tokens_total", tenant="legal", tier="gold") == 11
    assert shown.value("hearth_tenant_time_to_first_token_seconds_count", tenant="legal") == 1
    assert shown.value("hearth_tenant_time_to_first_token_seconds_sum", tenant="legal") == 0.25


def test_a_coalesced_request_costs_nothing() -> None:
    """It is counted as a request."""
    shown = Shown(an_outcome(usage=None, attempts=(), coalesced_with="r-0", request=a_request(id="r-2")))
    assert shown.value("hearth_tenant_requests_total", tenant="legal") == 1
    assert shown.totals.cost == {}
