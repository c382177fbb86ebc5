"""Counts pairs and what they came to, and shows it to Prometheus. By connector and by a closed list of reasons."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from gateway.attempts.outcome import Outcome
from routing.decision.receipt import AttemptReceipt


class PairMetrics(Collector):
    """A witness of outcomes. Requests that were no pairs' cost it a look at each attempt."""

    def __init__(self) -> None:
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._fallbacks: Counter[str] = Counter()
        self._seconds: defaultdict[tuple[str, str], float] = defaultdict(float)

    def on_outcome(self, outcome: Outcome) -> None:
        """Count a request that has ended."""
        for attempt in outcome.attempts:
            if attempt.prefill is not None:
                self._count(attempt)
            if attempt.fallback is not None:
                self._fallbacks[attempt.fallback.value] += 1

    def _count(self, attempt: AttemptReceipt) -> None:
        name = attempt.connector or ""
        self._pairs[name, attempt.ended] += 1
        if attempt.transfer_s is not None and attempt.predicted_transfer_s is not None:
            self._seconds[name, "real"] += attempt.transfer_s
            self._seconds[name, "predicted"] += attempt.predicted_transfer_s

    def collect(self) -> Iterator[CounterMetricFamily]:
        """All families of this moment."""
        pairs = CounterMetricFamily(
            "hearth_pairs",
            "Attempts with prefill and decode on two pods, by how they ended.",
            labels=("connector", "end"),
        )
        for (connector, end), count in self._pairs.items():
            pairs.add_metric((connector, end), count)
        yield pairs
        fallbacks = CounterMetricFamily(
            "hearth_pair_fallbacks",
            "Attempts that were no pair's or came to nothing as one, by why.",
            labels=("reason",),
        )
        for reason, count in self._fallbacks.items():
            fallbacks.add_metric((reason,), count)
        yield fallbacks
        seconds = CounterMetricFamily(
            "hearth_pair_transfer_seconds", "From prefill's end to the first token.", labels=("connector", "which")
        )
        for (connector, which), total in self._seconds.items():
            seconds.add_metric((connector, which), total)
        yield seconds
