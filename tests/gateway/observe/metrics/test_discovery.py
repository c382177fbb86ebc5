"""A source's pods, its age and its trouble are metrics."""

from prometheus_client import CollectorRegistry

from gateway.config.discovery import Found
from gateway.discovery.aggregator import Census
from gateway.discovery.source import Static
from gateway.observe.metrics.discovery import SourcesExposition


def test_each_source_has_its_figures() -> None:
    """One that has never spoken has no age, but may have trouble."""
    good, silent = Static([]), Static([])
    good.name, silent.name = "good", "silent"
    silent.trouble = "away"
    census = Census([good, silent])
    census.take(good, (Found("http://a:1"), Found("http://b:1")), 3.0)
    registry = CollectorRegistry()
    registry.register(SourcesExposition(census, lambda: 5.0))

    def value(name: str, source: str) -> float | None:
        return registry.get_sample_value(f"hearth_source_{name}", {"source": source})

    assert [value(name, "good") for name in ("pods", "age_seconds", "trouble")] == [2.0, 2.0, 0.0]
    assert [value(name, "silent") for name in ("pods", "age_seconds", "trouble")] == [None, None, 1.0]
