"""Engines' own figures are passed on by pool and role, and nodes' as their agents read them."""

from prometheus_client import CollectorRegistry

from gateway.fleet.engine_counters import EngineCounters
from gateway.fleet.scrape import COUNTERS as SCRAPED
from gateway.fleet.scrape import PROMPT_TOKENS_BY_SOURCE
from gateway.observe.metrics.engines import COUNTERS, SUMMARIES, EngineCollector
from routing.pod_record import GpuReading, NodeReading, RdmaPort

LABELS = {"pool": "h100", "role": "decode"}


def shown(counters: EngineCounters, **nodes: NodeReading) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(EngineCollector(counters, lambda: nodes))
    return registry


def test_each_counter_that_is_scraped_is_shown() -> None:
    """Each under a name of its own."""
    read = {source for _, _, source in COUNTERS} | {
        f"{source}_{end}" for _, _, source in SUMMARIES for end in ("sum", "count")
    }
    assert read == set(SCRAPED)


def test_times_have_a_sum_and_a_count() -> None:
    """And counters their total, prompt tokens by source."""
    counters = EngineCounters()
    before = dict.fromkeys((*SCRAPED, f"{PROMPT_TOKENS_BY_SOURCE} local_compute"), 10.0)
    counters.observe("http://a:1", "h100", "decode", before)
    counters.observe("http://a:1", "h100", "decode", {name: value + 2.0 for name, value in before.items()})
    value = shown(counters).get_sample_value
    assert value("hearth_engine_queue_seconds_sum", LABELS) == value("hearth_engine_queue_seconds_count", LABELS) == 2.0
    assert value("hearth_engine_preemptions_total", LABELS) == 2.0
    assert value("hearth_engine_nixl_failed_transfers_total", LABELS) == 2.0
    assert value("hearth_engine_prompt_tokens_total", {**LABELS, "source": "local_compute"}) == 2.0


def test_nodes_show_gpus_and_ports() -> None:
    """What a device does not report has no series."""
    reading = NodeReading(
        (GpuReading(0.5, 10, 80, 300.0), GpuReading(None, 1, 80)), (RdmaPort("mlx5_0", 1, is_up=False),)
    )
    value = shown(EngineCounters(), n1=reading).get_sample_value
    assert value("hearth_gpu_utilization_ratio", {"node": "n1", "gpu": "0"}) == 0.5
    assert value("hearth_gpu_utilization_ratio", {"node": "n1", "gpu": "1"}) is None
    assert value("hearth_gpu_memory_used_bytes", {"node": "n1", "gpu": "1"}) == 1
    assert value("hearth_gpu_power_watts", {"node": "n1", "gpu": "0"}) == 300.0
    assert value("hearth_rdma_port_up", {"node": "n1", "device": "mlx5_0", "port": "1"}) == 0
