"""What grows is found to grow, what is noise is not."""

from __future__ import annotations

from random import Random

import pytest

from tests.soak.trend import trend_of


def test_growth_is_reported_per_hour_and_over_the_run() -> None:
    """Ten a second from the first third on, whatever came before."""
    at_s = [float(second) for second in range(90)]
    trend = trend_of(at_s, [1e9 if second < 30 else 10 * second for second in at_s])
    assert trend.an_hour == pytest.approx(36_000)
    assert trend.growth == pytest.approx(590)
    assert trend.level == pytest.approx(595)


def test_what_fills_up_first_is_reported_apart() -> None:
    """Sixty within the first third, nothing behind it: no growth, whatever the caches took."""
    trend = trend_of([10.0 * at for at in range(90)], [100 + 2.0 * min(at, 30) for at in range(90)])
    assert trend.fill_up == pytest.approx(60)
    assert trend.growth == trend.an_hour == pytest.approx(0)


def test_noise_is_no_growth() -> None:
    """A level that wavers by a tenth over an hour."""
    draw = Random(1)
    trend = trend_of([10.0 * at for at in range(360)], [100 + draw.uniform(-10, 10) for _ in range(360)])
    assert abs(trend.growth) < 5


def test_two_measurements_show_nothing() -> None:
    """Any two lie on a line."""
    with pytest.raises(ValueError, match="show no trend"):
        trend_of([0.0, 1.0], [1.0, 2.0])
