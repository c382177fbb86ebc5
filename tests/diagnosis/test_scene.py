"""Facts as recipes read them."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.facts import FleetFacts
from diagnosis.levels import hit_rate
from diagnosis.scene import Scene, fresh
from tests.diagnosis.scene import NOW_S, baseline, engine, fleet, pod


def test_stale_groups_are_removed_each_at_its_own_age() -> None:
    """A window after 45 s, hardware after a quarter of an hour, flags after an hour."""
    facts = fleet()
    after_a_minute = fresh(facts, NOW_S + 60).pods[0]
    assert after_a_minute.engines == ()
    assert after_a_minute.requests is None
    assert after_a_minute.flags is not None
    assert after_a_minute.hardware is not None
    later = fresh(facts, NOW_S + 1_000).pods[0]
    assert later.hardware is None
    assert later.flags is not None
    assert fresh(facts, NOW_S + 1_000).clock_offsets_s == {}
    assert fresh(facts, NOW_S + 4_000).pods[0].flags is None


def test_a_short_window_is_removed() -> None:
    """Two scrapes in a second say nothing."""
    facts = fleet(pod("c0", engines=(engine(start_s=NOW_S - 1),)))
    assert fresh(facts, NOW_S).pods[0].engines == ()


def test_pods_that_have_just_begun_are_not_peers() -> None:
    """Their caches are empty, and so are those of a restarted engine."""
    young = pod("c1", ready_since_s=NOW_S - 10, engines=(engine(cache_hits=0.0),))
    again = pod("c2", engines=(engine(cache_hits=0.0, is_restarted=True),))
    scene = Scene(fleet(young, again), None, NOW_S)
    first = scene.facts.pods[0]
    assert not scene.has_peers(first)
    assert scene.peer_median(first, hit_rate) is None
    assert not scene.is_settled(scene.pools["chat"][1])


def test_the_reference_is_the_baseline_and_else_the_peers() -> None:
    """None without both."""
    facts = fleet(pod("c1", engines=(engine(cache_hits=3_200.0),)), pod("c2", engines=(engine(cache_hits=3_200.0),)))
    first = facts.pods[0]
    for normal, expected, basis in ((baseline(), 0.6, "baseline"), (None, 0.2, "peers")):
        found = Scene(facts, normal, NOW_S).reference(first, "hit_rate")
        assert found is not None
        assert found[0] == pytest.approx(expected)
        assert found[1] == basis
    alone = replace(facts, pods=(first,))
    assert Scene(alone, None, NOW_S).reference(first, "hit_rate") is None


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8), st.sets(st.integers(0, 7)))
def test_the_median_of_peers_leaves_the_pod_out(rates: list[float], missing: set[int]) -> None:
    """Values once sorted give the same as a search for each pod."""
    held = [
        pod(f"c{number}", engines=() if number in missing else (engine(cache_hits=16_000.0 * rate),))
        for number, rate in enumerate(rates)
    ]
    scene = Scene(FleetFacts(NOW_S, tuple(held)), None, NOW_S)
    for number, each in enumerate(held):
        others = [rate for other, rate in enumerate(rates) if other not in {number, *missing}]
        expected = median(others) if others else None
        assert scene.peer_median(each, hit_rate) == (None if expected is None else pytest.approx(expected))
