"""The peak of goodput is found."""

from __future__ import annotations

import pytest

from bench.slo.best import Best, find_best


@pytest.mark.parametrize("peak", [0.02, 0.7, 1.0, 33.0, 900.0])
@pytest.mark.parametrize("first", [0.1, 1.0, 50.0])
def test_finds_the_peak(peak: float, first: float) -> None:
    """From below and from above, to a few percent."""

    def play(load: float) -> Best:
        met = load if load < peak else peak**2 / load
        return Best(load, met, met)

    assert find_best(play, first).load == pytest.approx(peak, rel=0.04)
