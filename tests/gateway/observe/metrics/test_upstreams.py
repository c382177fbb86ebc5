"""One value per pod says which one is sick: state, breaker, last error, attempts, first tokens."""

from prometheus_client import CollectorRegistry

from gateway.config.discovery import DiscoveredPod
from gateway.fleet.pod_state import WatchedPod
from gateway.fleet.probe import ModelListing, ProbeResult
from gateway.fleet.scrape import EngineReading, MetricsPage
from gateway.observe.metrics.request_groups import single_attempts
from gateway.observe.metrics.upstreams import UpstreamCollector, UpstreamCounters, waiting_by_engine
from gateway.runtime.metric_families import Histogram
from routing.facts import PodFacts
from routing.fleet import Fleet
from routing.pods import Pod, PodState
from tests.gateway.samples import an_attempt, an_outcome


def shown(*pods: WatchedPod, now_s: float = 100.0) -> CollectorRegistry:
    fleet, registry = Fleet(), CollectorRegistry()
    for pod in pods:
        fleet.put(Pod(pod.url, state=pod.standing(), pool="h100"))
    registry.register(UpstreamCollector(fleet, lambda: pods, lambda: now_s, lambda: 5000.0 + now_s))
    return registry


def test_a_sick_pod_is_seen_at_once() -> None:
    """Its state, its breaker, and when and how it last failed."""
    pod = WatchedPod(DiscoveredPod("http://a:1", "h100", PodFacts(region="on-prem")))
    pod.apply_health(ProbeResult.HEALTHY, 10.0)
    pod.apply_models(ModelListing(()), 10.0)
    pod.apply_health(ProbeResult.UNREACHABLE, 90.0)
    registry = shown(pod)
    value = registry.get_sample_value
    assert value("hearth_upstream_state", {"upstream": "http://a:1", "state": "open_circuit"}) == 1
    assert value("hearth_upstream_breaker_state", {"upstream": "http://a:1", "state": "open"}) == 1
    labels = {"upstream": "http://a:1", "reason": "unreachable"}
    assert value("hearth_upstream_last_error_timestamp_seconds", labels) == 5090.0
    assert value("hearth_upstream_info", {"upstream": "http://a:1", "pool": "h100", "region": "on-prem"}) == 1


def test_a_pod_has_one_series_of_each() -> None:
    """Only the state it has; no error before the first."""
    registry = shown(WatchedPod(DiscoveredPod("http://a:1")), WatchedPod(DiscoveredPod("http://b:1")))
    counts = {family.name: len(family.samples) for family in registry.collect()}
    assert counts["hearth_upstream_state"] == counts["hearth_upstream_breaker_state"] == 2
    assert counts["hearth_upstream_last_error_timestamp_seconds"] == 0


def test_a_pod_that_does_not_list_its_models_has_an_error() -> None:
    """Though its probes succeed."""
    pod = WatchedPod(DiscoveredPod("http://a:1"))
    pod.apply_models(ModelListing(None, "401"), 50.0)
    assert (pod.last_error, pod.failed_s) == ("models_unreadable", 50.0)


def test_engines_show_their_queue_and_cache() -> None:
    """By the last scrape, by rank where there are several."""
    pod = WatchedPod(DiscoveredPod("http://a:1"))
    pod.apply_metrics(MetricsPage({0: EngineReading(waiting=2.0, kv_usage=0.5), 1: EngineReading()}), 99.0)
    value = shown(pod).get_sample_value
    assert value("hearth_engine_waiting_requests", {"upstream": "http://a:1", "dp_rank": "0"}) == 2
    assert value("hearth_engine_kv_usage_ratio", {"upstream": "http://a:1", "dp_rank": "0"}) == 0.5
    assert value("hearth_scrape_age_seconds", {"upstream": "http://a:1"}) == 1.0
    assert waiting_by_engine([pod]) == {"http://a:1#0": 2.0, "http://a:1#1": 0.0}
    pod.apply_metrics(MetricsPage({0: EngineReading(waiting=1.0)}), 99.5)
    assert waiting_by_engine([pod]) == {"http://a:1": 1.0}


def test_attempts_are_counted_by_pod_and_go_with_it() -> None:
    """All engines of a pod together; a pod that has left has no series."""
    fleet = Fleet()
    fleet.put(Pod("http://a:1", PodState.READY))
    counts = UpstreamCounters(fleet)
    tried = (an_attempt(engine="http://a:1#0", result="timeout", actual_ttft_s=None), an_attempt())
    for receipts in (tried, (an_attempt(engine="http://gone:1"),)):
        for sums in single_attempts(an_outcome(attempts=receipts), "tiny", Histogram(())):
            counts.add(sums)
    attempts, ttft = counts.families()
    assert {sample.labels["result"]: sample.value for sample in attempts.samples} == {"timeout": 1, "ok": 1}
    assert {sample.name[-5:]: sample.value for sample in ttft.samples} == {"count": 1, "s_sum": 0.15}
    fleet.remove("http://a:1")
    assert [family.samples for family in counts.families()] == [[], []]
