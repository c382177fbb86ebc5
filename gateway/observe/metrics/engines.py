"""Passes on what engines report of themselves, by pool and role, and what agents report of their nodes.

All workers of a host see the same engines: the supervisor takes the largest of their sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from gateway.fleet.engine_counters import EngineCounters
from gateway.fleet.scrape import PROMPT_TOKENS_BY_SOURCE
from gateway.observe.metrics.pools import LABELS
from gateway.runtime.metric_families import Family
from routing.pod_record import GpuReading, NodeReading

SUMMARIES = (
    ("hearth_engine_queue_seconds", "Time of requests in engines' queues.", "request_queue_time_seconds"),
    ("hearth_engine_prefill_seconds", "Time of requests in prefill.", "request_prefill_time_seconds"),
    ("hearth_engine_decode_seconds", "Time of requests in decode.", "request_decode_time_seconds"),
    ("hearth_engine_nixl_transfer_seconds", "Time of NIXL transfers.", "nixl_xfer_time_seconds"),
    ("hearth_engine_nixl_post_seconds", "Time to post NIXL transfers.", "nixl_post_time_seconds"),
)
"""Metric, description, and vLLM's histogram, of which sum and count are passed on."""

COUNTERS = (
    ("hearth_engine_preemptions", "Requests preempted.", "num_preemptions_total"),
    ("hearth_engine_generation_tokens", "Tokens generated.", "generation_tokens_total"),
    ("hearth_engine_draft_tokens", "Tokens drafted by speculation.", "spec_decode_num_draft_tokens_total"),
    (
        "hearth_engine_accepted_draft_tokens",
        "Drafted tokens that were accepted.",
        "spec_decode_num_accepted_tokens_total",
    ),
    ("hearth_engine_nixl_transferred_bytes", "Bytes moved by NIXL.", "nixl_bytes_transferred_sum"),
    ("hearth_engine_nixl_failed_transfers", "Failed NIXL transfers.", "nixl_num_failed_transfers_total"),
    (
        "hearth_engine_nixl_expired_requests",
        "Requests whose KV expired before it was fetched.",
        "nixl_num_kv_expired_reqs_total",
    ),
    ("hearth_engine_estimated_flops", "Floating-point operations per GPU.", "estimated_flops_per_gpu_total"),
    ("hearth_engine_estimated_read_bytes", "Bytes read per GPU.", "estimated_read_bytes_per_gpu_total"),
    ("hearth_engine_estimated_write_bytes", "Bytes written per GPU.", "estimated_write_bytes_per_gpu_total"),
)
"""Metric, description, and vLLM's counter."""

GPU_GAUGES: tuple[tuple[str, str, Callable[[GpuReading], float | None]], ...] = (
    ("hearth_gpu_utilization_ratio", "Part of the time in which the GPU was in use.", lambda gpu: gpu.utilization),
    ("hearth_gpu_memory_used_bytes", "Memory of the GPU in use.", lambda gpu: gpu.memory_used_bytes),
    ("hearth_gpu_memory_total_bytes", "Memory of the GPU.", lambda gpu: gpu.memory_total_bytes),
    ("hearth_gpu_power_watts", "Power drawn by the GPU.", lambda gpu: gpu.power_w),
)


@dataclass(frozen=True, eq=False)
class EngineCollector(Collector):
    """Shows the sums of a gateway's engines, and the last reading of each node."""

    counters: EngineCounters
    nodes: Callable[[], Mapping[str, NodeReading]]
    """The last reading of each agent's node, by name of the agent."""

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        sums = self.counters.sums
        places: dict[str, list[tuple[tuple[str, str], float]]] = {}
        for (name, pool, role), value in sums.items():
            places.setdefault(name, []).append(((pool, role), value))
        for name, words, source in SUMMARIES:
            summary = SummaryMetricFamily(name, words, labels=LABELS)
            counts = dict(places.get(f"{source}_count", ()))
            for key, total in places.get(f"{source}_sum", ()):
                summary.add_metric(key, round(counts.get(key, 0.0)), total)
            yield summary
        for name, words, source in COUNTERS:
            counter = CounterMetricFamily(name, words, labels=LABELS)
            for key, total in places.get(source, ()):
                counter.add_metric(key, total)
            yield counter
        prompts = CounterMetricFamily(
            "hearth_engine_prompt_tokens", "Prompt tokens by where their KV came from.", labels=(*LABELS, "source")
        )
        for name, held in places.items():
            if name.startswith(PROMPT_TOKENS_BY_SOURCE):
                for key, total in held:
                    prompts.add_metric((*key, name.partition(" ")[2]), total)
        yield prompts
        yield from self._nodes()

    def _nodes(self) -> Iterator[Family]:
        """Yield the families one by one: they are many series, and other tasks run between two."""
        nodes = self.nodes()
        for name, words, value_of in GPU_GAUGES:
            gauge = GaugeMetricFamily(name, words, labels=("node", "gpu"))
            for node, reading in nodes.items():
                for at, gpu in enumerate(reading.gpus):
                    if (value := value_of(gpu)) is not None:
                        gauge.add_metric((node, str(at)), value)
            yield gauge
        ports = GaugeMetricFamily(
            "hearth_rdma_port_up", "1 while the port of the RDMA device is active.", labels=("node", "device", "port")
        )
        for node, reading in nodes.items():
            for port in reading.rdma_ports:
                ports.add_metric((node, port.device, str(port.port)), float(port.is_up))
        yield ports
