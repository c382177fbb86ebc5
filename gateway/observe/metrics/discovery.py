"""Shows to Prometheus what each source of pods told, when, and whether it can be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.discovery.aggregator import Census


class SourcesExposition(Collector):
    """A gateway's sources."""

    def __init__(self, census: Census, clock: Callable[[], float]) -> None:
        self._census = census
        self._clock = clock

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All families of this moment."""
        labels = ("source",)
        pods = GaugeMetricFamily("hearth_source_pods", "Pods that a source named last.", labels=labels)
        age = GaugeMetricFamily("hearth_source_age_seconds", "Since a source's last word.", labels=labels)
        trouble = GaugeMetricFamily("hearth_source_trouble", "1 where a source cannot tell now.", labels=labels)
        now_s = self._clock()
        for source in self._census.sources:
            trouble.add_metric((source.name,), float(bool(source.trouble)))
            if (word := self._census.last_word(source)) is not None:
                pods.add_metric((source.name,), len(word.found))
                age.add_metric((source.name,), max(0.0, now_s - word.at_s))
        yield from (pods, age, trouble)
