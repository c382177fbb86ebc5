"""Start-up times are learned, from engines that have not started yet as well."""

from __future__ import annotations

from supply.startup import StartTimes


def test_the_upper_quantile_follows_what_was_seen() -> None:
    """One slow start among many does not set it; a few do."""
    times = StartTimes(60.0)
    assert times.upper_s() == 60.0
    for _ in range(12):
        times = times.observed(240.0)
    assert times.upper_s() == 240.0
    for _ in range(18):
        times = times.observed(90.0)
    assert times.upper_s() == 90.0
    assert times.observed(3_000.0).upper_s() == 90.0


def test_a_start_that_goes_on_counts_with_its_age() -> None:
    """The estimate is known to be too low before the engine serves."""
    assert StartTimes(60.0).upper_s(200.0) == 200.0
