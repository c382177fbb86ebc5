"""Latency histograms by model, tier and pool, with fixed edges. Objectives met are counted exactly, elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import HistogramMetricFamily

from gateway.runtime.metric_families import OTHER, Family, Histogram, cumulative_buckets

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
"""vLLM's buckets, so that both fit in one panel; also the next two."""

TPOT_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)

DURATION_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)

WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)

MAX_KEYS = 200
"""Combinations of model, tier and pool with series of their own."""

Key = tuple[str, str, str]
"""Model, tier, pool."""

OTHERS = (OTHER, OTHER, OTHER)


class LatencyHistograms:
    """The histograms of one model, tier and pool, in seconds."""

    __slots__ = ("duration_s", "queue_wait_s", "tpot_s", "ttft_s")

    def __init__(self) -> None:
        self.ttft_s = Histogram(TTFT_BUCKETS)
        self.tpot_s = Histogram(TPOT_BUCKETS)
        self.queue_wait_s = Histogram(WAIT_BUCKETS)
        self.duration_s = Histogram(DURATION_BUCKETS)


SHOWN: tuple[tuple[str, str, Callable[[LatencyHistograms], Histogram]], ...] = (
    ("hearth_time_to_first_token_seconds", "From arrival to the first token.", lambda held: held.ttft_s),
    (
        "hearth_time_per_output_token_seconds",
        "Mean time per output token of a stream, after the first.",
        lambda held: held.tpot_s,
    ),
    ("hearth_queue_wait_seconds", "Time in the gateway's queue.", lambda held: held.queue_wait_s),
    ("hearth_request_duration_seconds", "From arrival to the end of the response.", lambda held: held.duration_s),
)


class LatencyCounters:
    """Histograms by model, tier and pool. More than `max_keys` combinations are `other`."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self.by_key: dict[Key, LatencyHistograms] = {}

    def of(self, model: str, tier: str, pool: str) -> LatencyHistograms:
        """Return the histograms to which requests of these label values belong."""
        key = (model, tier, pool)
        held = self.by_key.get(key)
        if held is None:
            if len(self.by_key) >= self._max_keys:
                key = OTHERS
            held = self.by_key.setdefault(key, LatencyHistograms())
        return held

    def families(self) -> Iterator[Family]:
        """Return the metric families of this moment."""
        for name, words, histogram_of in SHOWN:
            family = HistogramMetricFamily(name, words, labels=("model_name", "tier", "pool"))
            for key, held in self.by_key.items():
                histogram = histogram_of(held)
                family.add_metric(key, cumulative_buckets(histogram), histogram.total)
            yield family
