"""Lengths have the means that files state."""

from __future__ import annotations

from random import Random
from statistics import fmean, median

import pytest

from bench.slo.lengths import LogNormal, Quantiles


def test_a_log_normal_has_its_mean() -> None:
    """Not that of its logarithm."""
    random = Random(1)
    drawn = [LogNormal(800, 0.8).draw(random) for _ in range(40_000)]
    assert fmean(drawn) == pytest.approx(800, rel=0.02)


def test_a_log_normal_is_cut() -> None:
    """What is longer than the most is the most, and what would be nothing is one token."""
    random = Random(1)
    drawn = [LogNormal(800, 0.8, maximum=1_000).draw(random) for _ in range(1_000)]
    assert max(drawn) == 1_000
    assert min(LogNormal(1, 3.0).draw(random) for _ in range(1_000)) == 1


def test_quantiles_are_met() -> None:
    """The stated shares lie below the stated lengths, and nothing beyond the ends."""
    random = Random(1)
    lengths = Quantiles(((0.0, 10.0), (0.5, 100.0), (0.9, 5_000.0), (1.0, 6_000.0)))
    drawn = sorted(lengths.draw(random) for _ in range(20_000))
    assert drawn[0] >= 10
    assert drawn[-1] <= 6_000
    assert median(drawn) == pytest.approx(100, rel=0.05)
    assert drawn[18_000] == pytest.approx(5_000, rel=0.05)
