"""Shows to Prometheus what second attempts there were, what is left for more, and whose silence was too long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from routing.retries import Budget, Try
from routing.stall_detection import Late

Family = CounterMetricFamily | GaugeMetricFamily


class RetriesExposition(Collector):
    """A gateway's figures."""

    def __init__(self, budget: Budget, silences: Mapping[Late, int]) -> None:
        """`silences`: how often what has gone silent was given up."""
        self._budget = budget
        self._silences = silences

    def collect(self) -> Iterator[Family]:
        """All families of this moment."""
        budget = self._budget
        for name, words, counts in (
            ("hearth_second_attempts", "Attempts beyond a request's first, by what for.", budget.taken),
            ("hearth_second_attempts_refused", "Those that the retry budget did not allow.", budget.refused),
        ):
            family = CounterMetricFamily(name, words, labels=("why",))
            for what in Try:
                family.add_metric((what.value,), counts[what])
            yield family
        yield GaugeMetricFamily("hearth_retry_budget", "Second attempts that may still come at once.", budget.left)
        silent = CounterMetricFamily(
            "hearth_stalls", "What fell silent for too long, by what it was.", labels=("what",)
        )
        for late in Late:
            silent.add_metric((late.name.lower(),), self._silences.get(late, 0))
        yield silent
