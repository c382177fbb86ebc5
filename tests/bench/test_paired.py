"""The verdict of a paired comparison: intervals of medians, and rows that are worse."""

from __future__ import annotations

import pytest

from bench.overhead import report
from bench.overhead.paired import median_interval, verdict


@pytest.mark.parametrize(("count", "low", "high"), [(3, 1, 3), (6, 1, 6), (10, 2, 9), (12, 3, 10), (20, 6, 15)])
def test_the_interval_of_a_median_is_that_of_the_tables(count: int, low: int, high: int) -> None:
    """Order statistics as the sign test's tables give them for 95 %."""
    assert median_interval(range(count, 0, -1)) == (low, high)


def test_one_slow_round_is_no_verdict_and_a_slow_row_is() -> None:
    """A row fails where the interval reaches 1.03, not where one round does."""
    then = [10.0] * 10
    steady, slower = [*[10.0] * 9, 20.0], [10.5] * 10
    figures = {("a", report.UNARY): steady, ("b", report.UNARY): then}
    assert verdict(figures, [("a", "b")], "HEAD")[1]
    assert not verdict(figures | {("a", report.LARGE): slower, ("b", report.LARGE): then}, [("a", "b")], "HEAD")[1]
