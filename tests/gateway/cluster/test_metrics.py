"""Many processes' metrics read as one gateway's, and no total falls when a process goes."""

from collections.abc import Iterable

import pytest
from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families

from gateway.cluster.metrics import (
    STATE_RANK,
    MergedMetrics,
    RetiredCounters,
    Scrape,
    merge_scrapes,
    parse_exposition,
)
from gateway.fleet.breaker import BreakerState
from gateway.observe.metrics.fleet import FleetCollector
from gateway.observe.metrics.process import make_registry
from gateway.observe.metrics.requests import RequestCounters
from routing.decision.router import Router
from routing.pods import PodState
from scorers.registry import routings
from tests.gateway.samples import an_outcome


def page(*, requests: int, running: int, ready: int, open_requests: int, memory: int = 100) -> Scrape:
    """One process's exposition, with one family of each kind."""
    return parse_exposition(
        f"""
# TYPE hearth_requests_total counter
hearth_requests_total{{model_name="a",status="200"}} {requests}
# TYPE hearth_time_to_first_token_seconds histogram
hearth_time_to_first_token_seconds_bucket{{model_name="a",le="0.1"}} {requests - 1}
hearth_time_to_first_token_seconds_bucket{{model_name="a",le="+Inf"}} {requests}
hearth_time_to_first_token_seconds_count{{model_name="a"}} {requests}
hearth_time_to_first_token_seconds_sum{{model_name="a"}} {requests * 0.5}
# TYPE hearth_requests_in_flight gauge
hearth_requests_in_flight {open_requests}
# TYPE hearth_upstreams gauge
hearth_upstreams{{state="ready"}} {ready}
# TYPE hearth_engine_running_requests gauge
hearth_engine_running_requests{{upstream="http://a:1",dp_rank="0"}} {running}
# TYPE hearth_engine_kv_capacity_tokens gauge
hearth_engine_kv_capacity_tokens{{upstream="http://a:1",dp_rank="0"}} 1600
# TYPE hearth_breaker_opens_total counter
hearth_breaker_opens_total{{upstream="http://a:1"}} 1
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes {memory}
"""
    )


def lines(metrics: Iterable[Metric]) -> dict[str, float]:
    """Every sample as Prometheus would write it."""
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
        for metric in metrics
        for sample in metric.samples
    }


def test_each_family_is_put_together_by_its_rule() -> None:
    """Counts and own load are summed, facts are told once, and what a process says of itself stays its own."""
    readings = {
        "worker-1": page(requests=3, running=1, ready=2, open_requests=5),
        "worker-2": page(requests=4, running=2, ready=1, open_requests=6, memory=200),
    }
    assert lines(merge_scrapes(readings, {})) == {
        "hearth_requests_total a 200": 7,
        "hearth_time_to_first_token_seconds_bucket a 0.1": 5,
        "hearth_time_to_first_token_seconds_bucket a +Inf": 7,
        "hearth_time_to_first_token_seconds_count a": 7,
        "hearth_time_to_first_token_seconds_sum a": 3.5,
        "hearth_requests_in_flight": 11,
        "hearth_upstreams ready": 2,
        "hearth_engine_running_requests http://a:1 0": 3,
        "hearth_engine_kv_capacity_tokens http://a:1 0": 1600,
        "hearth_breaker_opens_total http://a:1": 2,
        "process_resident_memory_bytes worker-1": 100,
        "process_resident_memory_bytes worker-2": 200,
    }


def test_who_has_gone_leaves_its_counts_and_nothing_else() -> None:
    """Gauges go with their process; counters and histograms stay, also of families that nobody else has."""
    legacy = RetiredCounters()
    legacy.add(page(requests=3, running=1, ready=1, open_requests=5))
    legacy.add(page(requests=2, running=1, ready=1, open_requests=5))
    alone = lines(merge_scrapes({}, legacy.families))
    assert alone["hearth_requests_total a 200"] == alone["hearth_time_to_first_token_seconds_count a"] == 5
    assert not [name for name in alone if "open_requests" in name or "running" in name or "process_" in name]
    both = lines(merge_scrapes({"worker-1": page(requests=1, running=1, ready=1, open_requests=1)}, legacy.families))
    assert both["hearth_requests_total a 200"] == 6
    assert lines(merge_scrapes({}, legacy.families)) == alone


async def test_what_a_gateway_really_shows_survives_the_merge() -> None:
    """All families of two real expositions, read and written in both formats that Prometheus asks for."""
    texts = []
    for _ in range(2):
        router = Router(routings()["warm"])
        tallies = RequestCounters(lambda _: True, router.fleet)
        tallies.on_outcome(an_outcome())
        fleet = FleetCollector(router, lambda: 1, lambda: 2, lambda: {"requests": 0})
        encode, _ = choose_encoder("text/plain")
        registry = make_registry()
        registry.register(tallies)
        registry.register(fleet)
        texts.append(encode(registry).decode())
    readings = {f"worker-{at}": parse_exposition(text) for at, text in enumerate(texts, 1)}
    for accepted in ("text/plain", "application/openmetrics-text; version=1.0.0"):
        encode, _ = choose_encoder(accepted)
        text = encode(MergedMetrics(merge_scrapes(readings, {}))).decode()
        assert 'hearth_requests_total{model_name="tiny",reason="",status="200"} 2.0' in text
        assert 'process_open_fds{process="worker-2"}' in text
    single = {metric.name for metric in text_string_to_metric_families(texts[0])}
    assert {metric.name for metric in merge_scrapes(readings, {})} == single


def upstream_page(state: str, breaker: str, error: str, failed_at_s: int, *, cost: float, tokens: int) -> Scrape:
    """What a worker shows of one pod and its pool."""
    return parse_exposition(
        f"""
# TYPE hearth_upstream_state gauge
hearth_upstream_state{{upstream="http://a:1",state="{state}"}} 1
hearth_upstream_state{{upstream="http://b:1",state="ready"}} 1
# TYPE hearth_upstream_breaker_state gauge
hearth_upstream_breaker_state{{upstream="http://a:1",state="{breaker}"}} 1
# TYPE hearth_upstream_last_error_timestamp_seconds gauge
hearth_upstream_last_error_timestamp_seconds{{upstream="http://a:1",reason="{error}"}} {failed_at_s}
# TYPE hearth_pool_cost_total counter
hearth_pool_cost_total{{pool="h100"}} {cost}
# TYPE hearth_engine_queue_seconds summary
hearth_engine_queue_seconds_count{{pool="h100",role="either"}} {tokens}
hearth_engine_queue_seconds_sum{{pool="h100",role="either"}} {cost}
# TYPE hearth_pool_tokens_total counter
hearth_pool_tokens_total{{pool="h100",tenant="legal",kind="input"}} {tokens}
# TYPE hearth_pool_engines gauge
hearth_pool_engines{{pool="h100",role="either"}} 2
# TYPE hearth_pool_running_requests gauge
hearth_pool_running_requests{{pool="h100",role="either"}} 3
# TYPE hearth_gpu_utilization_ratio gauge
hearth_gpu_utilization_ratio{{node="n1",gpu="0"}} 0.5
"""
    )


MERGED = {
    "hearth_upstream_state http://a:1 open_circuit": 1,
    "hearth_upstream_state http://b:1 ready": 1,
    "hearth_upstream_breaker_state http://a:1 open": 1,
    "hearth_upstream_last_error_timestamp_seconds http://a:1 timeout": 20,
    "hearth_pool_cost_total h100": 2.5,
    "hearth_engine_queue_seconds_count h100 either": 7,
    "hearth_engine_queue_seconds_sum h100 either": 2.5,
    "hearth_pool_tokens_total h100 legal input": 12,
    "hearth_pool_engines h100 either": 2,
    "hearth_pool_running_requests h100 either": 6,
    "hearth_gpu_utilization_ratio n1 0": 0.5,
}


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_pod_has_one_state_over_all_workers(*, is_reversed: bool) -> None:
    """The worst, and the latest error; engines and their cost are counted once, own tokens and load summed."""
    pages = [
        upstream_page("ready", "closed", "timeout", 20, cost=1.5, tokens=5),
        upstream_page("open_circuit", "open", "unreachable", 10, cost=2.5, tokens=7),
    ]
    ordered = reversed(pages) if is_reversed else pages
    readings = {f"worker-{at}": reading for at, reading in enumerate(ordered, 1)}
    assert lines(merge_scrapes(readings, {})) == MERGED


def test_engines_of_a_worker_that_ended_are_not_counted_twice() -> None:
    """The other workers see them too; the tokens of its own requests stay."""
    legacy, reading = RetiredCounters(), upstream_page("ready", "closed", "timeout", 20, cost=1.5, tokens=5)
    legacy.add(reading)
    merged = lines(merge_scrapes({"worker-2": reading}, legacy.families))
    assert merged["hearth_pool_cost_total h100"] == merged["hearth_engine_queue_seconds_sum h100 either"] == 1.5
    assert merged["hearth_pool_tokens_total h100 legal input"] == 10


def test_every_state_has_its_rank() -> None:
    """A state without one would count as the best."""
    assert {str(state) for kind in (PodState, BreakerState) for state in kind} == set(STATE_RANK)
