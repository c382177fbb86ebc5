"""Prometheus reads what was counted, under the agreed names; who is gone has no series."""

import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.config.discovery import DiscoveredPod
from gateway.discovery.aggregator import PodAggregator
from gateway.discovery.source import StaticSource
from gateway.fleet.pod_state import WatchedPod
from gateway.fleet.probe import ProbeResult
from gateway.observe.metrics.fleet import FleetCollector, SourceCollector
from gateway.observe.metrics.process import make_registry
from gateway.observe.metrics.requests import RequestCounters
from gateway.observe.metrics.upstreams import UpstreamCollector
from routing.decision.router import Router
from routing.pods import EngineShape, Pod, PodState
from routing.rejection import Reason
from routing.request import Api, Request
from scorers.registry import routings
from tests.gateway.samples import an_attempt, an_outcome

Sample = tuple[str, tuple[tuple[str, str], ...]]


class Scraped:
    """A gateway's counts without the gateway, and a scrape of them."""

    def __init__(self) -> None:
        self.router = Router(routings()["warm"])
        self.tallies = RequestCounters(lambda _: True, self.router.fleet)
        self.pods: list[WatchedPod] = []
        fleet = FleetCollector(
            router=self.router,
            open_requests=lambda: 3,
            open_connections=lambda: 4,
            dropped_lines=lambda: {"requests": 5},
        )
        self.registry = make_registry()
        self.registry.register(self.tallies)
        self.registry.register(fleet)
        self.registry.register(
            UpstreamCollector(self.router.fleet, lambda: self.pods, lambda: 100.0, lambda: 1_000_100.0)
        )

    def add(self, url: str) -> None:
        self.router.put_pod(Pod(url, state=PodState.READY, models=frozenset({"tiny"})))
        self.router.reshape_pod(url, (EngineShape(kv_tokens=1600),))
        pod = WatchedPod(DiscoveredPod(url))
        pod.apply_health(ProbeResult.HEALTHY, 90.0)
        pod.apply_metrics(None, 95.0)
        self.pods.append(pod)

    def samples(self) -> dict[Sample, float]:
        text = generate_latest(self.registry).decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.samples()[name, tuple(sorted(labels.items()))]


def test_requests_are_shown_by_model_status_and_reason() -> None:
    """And tokens, times and predictions by model."""
    scraped = Scraped()
    scraped.tallies.on_outcome(an_outcome())
    scraped.tallies.on_outcome(
        an_outcome(
            status=502,
            reason=Reason.POD_LOST,
            usage=None,
            attempts=(an_attempt(result="connection_reset"), an_attempt(kind="failover")),
        )
    )
    scraped.tallies.count_rejection(Reason.BAD_JSON)
    assert scraped.value("hearth_requests_total", model_name="tiny", status="200", reason="") == 1
    assert scraped.value("hearth_requests_total", model_name="tiny", status="502", reason="pod_lost") == 1
    assert scraped.value("hearth_attempts_total", model_name="tiny", kind="first", result="connection_reset") == 1
    assert scraped.value("hearth_attempts_total", model_name="tiny", kind="failover", result="ok") == 1
    assert scraped.value("hearth_rejections_total", reason="pod_lost") == 1
    assert scraped.value("hearth_rejections_total", reason="bad_json") == 1
    assert scraped.value("hearth_input_tokens_total", model_name="tiny") == 100
    assert scraped.value("hearth_actual_cached_tokens_total", model_name="tiny") == 192
    assert scraped.value("hearth_tenant_input_tokens_total", tenant="legal") == 100
    assert scraped.value("hearth_tenant_cached_input_tokens_total", tenant="legal") == 96
    assert scraped.value("hearth_tenant_output_tokens_total", tenant="legal") == 11


def test_histograms_are_cumulative() -> None:
    """With vLLM's bounds, an infinite bucket that counts all, and the sum."""
    scraped = Scraped()
    for ttft_s in (0.0005, 0.3, 9999.0):
        scraped.tallies.on_outcome(an_outcome(ttft_s=ttft_s))
    name, labels = "hearth_time_to_first_token_seconds", {"model_name": "tiny", "tier": "default", "pool": "tiny"}
    assert scraped.value(f"{name}_bucket", **labels, le="0.001") == 1
    assert scraped.value(f"{name}_bucket", **labels, le="0.5") == 2
    assert scraped.value(f"{name}_bucket", **labels, le="+Inf") == 3
    assert scraped.value(f"{name}_count", **labels) == 3
    assert scraped.value(f"{name}_sum", **labels) == pytest.approx(9999.3005)


def test_engines_show_what_the_ledger_holds() -> None:
    """Read at the scrape, not when it changed."""
    scraped = Scraped()
    scraped.add("http://a:1")
    request = Request("r", Api.CHAT, "tiny", sequences=2)
    placement = scraped.router.place(request, avoid=frozenset(), now_s=0, draw=0)
    assert scraped.value("hearth_engine_running_requests", upstream="http://a:1", dp_rank="0") == 2
    assert scraped.value("hearth_engine_kv_capacity_tokens", upstream="http://a:1", dp_rank="0") == 1600
    placement.release(1)
    assert scraped.value("hearth_engine_running_requests", upstream="http://a:1", dp_rank="0") == 0


def test_a_pod_that_is_gone_has_no_series() -> None:
    """Neither its engine nor its breaker."""
    scraped = Scraped()
    scraped.add("http://a:1")
    assert any("http://a:1" in str(labels) for _, labels in scraped.samples())
    scraped.router.remove_pod("http://a:1")
    scraped.pods.clear()
    assert not any("http://a:1" in str(labels) for _, labels in scraped.samples())


def test_upstreams_are_counted_by_state() -> None:
    """Every state has its series, also at zero, so that an alert can be written on it."""
    scraped = Scraped()
    scraped.add("http://a:1")
    shown = {state: scraped.value("hearth_upstreams", state=state.value) for state in PodState}
    assert shown == dict.fromkeys(PodState, 0) | {PodState.READY: 1}


def test_the_gateway_shows_itself() -> None:
    """Version, what is open, what was dropped, and its own CPU and memory."""
    names = {name for name, _ in Scraped().samples()}
    assert {
        "hearth_build_info",
        "hearth_requests_in_flight",
        "hearth_downstream_connections",
        "hearth_event_loop_tasks",
        "hearth_prefix_index_blocks",
    } <= names
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes"} <= names
    assert Scraped().value("hearth_log_lines_dropped_total", log="requests") == 5


def test_names_carry_their_units() -> None:
    """`hearth_`, lower case, counters end in `_total`; no label of a scrape target, not both upstream and tenant."""
    scraped = Scraped()
    scraped.add("http://a:1")
    scraped.tallies.on_outcome(an_outcome())
    for name, labels in scraped.samples():
        if not name.startswith(("process_", "python_")):
            assert re.fullmatch(r"hearth_[a-z_]+", name)
        assert not {"pod", "engine"} & {label for label, _ in labels}
        assert not {"tenant", "upstream"} <= {label for label, _ in labels}


def test_gateways_in_one_interpreter_share_nothing() -> None:
    """Each has a registry of its own."""
    one, two = Scraped(), Scraped()
    one.tallies.on_outcome(an_outcome())
    assert not any(name == "hearth_requests_total" for name, _ in two.samples())


def test_each_source_has_its_figures() -> None:
    """One that has never answered has no age, but may be down."""
    good, silent = StaticSource([]), StaticSource([])
    good.name, silent.name = "good", "silent"
    silent.trouble = "away"
    census = PodAggregator([good, silent])
    census.update(good, (DiscoveredPod("http://a:1"), DiscoveredPod("http://b:1")), 3.0)
    registry = CollectorRegistry()
    registry.register(SourceCollector(census, lambda: 5.0))

    def value(name: str, source: str) -> float | None:
        return registry.get_sample_value(f"hearth_discovery_source_{name}", {"source": source})

    assert [value(name, "good") for name in ("upstreams", "age_seconds", "up")] == [2.0, 2.0, 1.0]
    assert [value(name, "silent") for name in ("upstreams", "age_seconds", "up")] == [None, None, 0.0]
