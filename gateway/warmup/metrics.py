"""Metrics of replays to new pods; their labels are bounded."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.runtime.metric_families import Family
from gateway.warmup.controller import WarmupController
from supply.warmup import SkipReason, StopReason


class WarmupCollector(Collector):
    """Shows the replays of one gateway."""

    def __init__(self, controller: WarmupController) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        controller, counters = self._controller, self._controller.counters
        yield GaugeMetricFamily(
            "hearth_warming_pods", "Pods that are kept from requests while they are warmed.", len(controller.held)
        )
        yield CounterMetricFamily(
            "hearth_warmup_replays", "Prompts replayed to new pods by this gateway.", counters.replays
        )
        yield CounterMetricFamily("hearth_warmup_tokens", "Prompt tokens of replays to new pods.", counters.tokens)
        yield CounterMetricFamily(
            "hearth_warmup_cached_tokens",
            "Prompt tokens of replays that the pod had cached already.",
            counters.cached_tokens,
        )
        yield CounterMetricFamily(
            "hearth_warmup_seconds",
            "Seconds from ready to taking load, of pods that this gateway warmed.",
            counters.seconds,
        )
        ended = CounterMetricFamily(
            "hearth_warmups", "Ended warm-ups of pods, by reason of the end.", labels=("reason",)
        )
        for reason in StopReason:
            ended.add_metric((reason.value,), counters.ends[reason])
        yield ended
        skipped = CounterMetricFamily(
            "hearth_warmup_skipped", "Hot prefixes that were not replayed to a new pod.", labels=("reason",)
        )
        for skip in SkipReason:
            skipped.add_metric((skip.value,), counters.skipped[skip])
        yield skipped
        yield CounterMetricFamily(
            "hearth_warmups_advised", "Pods that would have been warmed with prewarm: act.", counters.advised
        )
        yield CounterMetricFamily(
            "hearth_warmup_advised_tokens",
            "Prompt tokens that would have been replayed with prewarm: act.",
            counters.advised_tokens,
        )
        yield GaugeMetricFamily("hearth_warmup_prompts", "Prompts kept for warm-ups.", len(controller.prompts))
        yield GaugeMetricFamily(
            "hearth_warmup_prompt_bytes", "Bytes of the prompts kept for warm-ups.", controller.prompts.bytes
        )
