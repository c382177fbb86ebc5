"""Counts by bucket."""

from __future__ import annotations

from simulator.histogram import Histogram


def test_a_value_counts_up_to_its_limit() -> None:
    """Limits are inclusive; what lies beyond all of them is counted last."""
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.0)
    histogram.observe(1.5, 2)
    histogram.observe(9.0)
    assert histogram.counts == [1, 2, 1]
    assert histogram.total == 13.0
