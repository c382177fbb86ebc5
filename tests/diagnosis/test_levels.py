"""Figures that are compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnosis.distribution import distribution_of
from diagnosis.facts import SpeculationWindow, TransferWindow
from diagnosis.levels import (
    acceptance,
    bandwidth,
    constrained_share,
    descriptor_bytes,
    gap_s,
    hit_rate,
    levels_of,
    pod_figure,
    predicted_hit_rate,
    prefill_s_per_token,
    stalled_share,
)
from tests.diagnosis.scene import NOW_S, engine, fetching, fleet, gaps, pod, speculating, view


def test_figures_of_a_healthy_engine() -> None:
    """Each from the counters that it is made of."""
    assert hit_rate(engine()) == pytest.approx(0.6)
    assert acceptance(speculating()) == pytest.approx(0.6)
    assert bandwidth(fetching()) == pytest.approx(1e10)
    assert descriptor_bytes(fetching()) == pytest.approx(3e7)
    assert prefill_s_per_token(engine()) == pytest.approx(2.0 / 6_400)
    assert gap_s(engine()) == pytest.approx(0.022)
    assert predicted_hit_rate(view()) == pytest.approx(0.6)
    assert constrained_share(view()) == pytest.approx(0.025)


def test_too_few_events_are_not_a_figure() -> None:
    """None, so that nothing is compared with noise."""
    assert hit_rate(engine(cache_queries=100.0, computed_tokens=10.0, cached_tokens=3.0)) is None
    assert acceptance(engine(speculation=SpeculationWindow(3.0, 6.0, 0.0))) is None
    assert bandwidth(engine(transfers=TransferWindow(count=1.0, bytes=1.0, seconds=1.0))) is None
    assert stalled_share(engine(token_gap=gaps((0.1, 10)))) is None
    assert constrained_share(view(requests=2.0)) is None


def test_a_few_long_gaps_are_much_of_the_time() -> None:
    """One stall in a hundred gaps; none where all gaps are alike."""
    share = stalled_share(engine(token_gap=gaps((0.02, 990), (1.0, 10))))
    assert share == pytest.approx(7.5 / 29.8, rel=0.01)
    assert stalled_share(engine(token_gap=gaps((0.3, 500)))) == 0.0


def test_a_missing_histogram_is_replaced_by_sums() -> None:
    """Token gaps from decode times and answer lengths; hits from the sources of prompt tokens."""
    lengths = distribution_of([101.0] * 40, (1000.0,))
    assert gap_s(engine(token_gap=None, answer_lengths=lengths)) == pytest.approx(0.02)
    assert gap_s(engine(token_gap=None)) is None
    assert hit_rate(engine(cache_hits=None)) == pytest.approx(0.6)


def test_levels_are_kept_by_pool_and_role() -> None:
    """Engines without the figure add nothing."""
    found = levels_of(fleet())
    assert len(found["chat/either", "hit_rate"]) == 3
    assert len(found["split/decode", "bandwidth"]) == 3
    assert ("chat/either", "bandwidth") not in found
    assert found["", "redis_s"] != []


def test_old_windows_have_no_level() -> None:
    """A pod that no longer answers keeps its last window: it is not counted again and again."""
    held = fleet()
    assert levels_of(replace(held, at_s=held.at_s + 60.0)) == {}
    short = pod("c0", engines=(engine(start_s=NOW_S - 5.0),))
    assert len(levels_of(fleet(short))["chat/either", "hit_rate"]) == 2


def test_a_pod_has_the_mean_of_its_engines() -> None:
    """None where no engine has the figure."""
    both = pod("c0", engines=(engine(), engine(cache_hits=16_000.0)))
    assert pod_figure(both, hit_rate) == pytest.approx(0.8)
    assert pod_figure(pod("c0", engines=()), hit_rate) is None
