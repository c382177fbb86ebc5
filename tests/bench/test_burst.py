"""The bench of a burst beside a cloud, small: it plays, and its lines fall short where they should."""

from __future__ import annotations

from collections import Counter

from bench.scale.burst import Phases, Played, play, targets_of

SHORT = Phases(before_s=20.0, burst_s=60.0, after_s=10.0)


def test_a_short_burst_keeps_residents_at_home() -> None:
    """All requests are counted once, and the cloud is cold before the burst."""
    played = play(SHORT, seed=3)
    assert played.offered.total() > 100
    assert played.kept.total() <= played.offered.total()
    assert not [
        key for key, count in played.in_cloud.items() if count and (key[0] == "before" or key[1].endswith("home"))
    ]
    assert (played.cloud_s > 0) == (played.peak > 0)


def test_targets_fall_short_where_they_should() -> None:
    """A cloud that is used too early, by the wrong tenants, for too long, and gold that is late."""
    gold = ("burst", "gold-anywhere")
    offered = Counter({gold: 100, ("before", "gold-anywhere"): 100, ("before", "bronze-home"): 100})
    good = Played(offered, Counter({gold: 99}), Counter({gold: 50}), cloud_s=110.0)
    minimal = Played(cloud_s=100.0)
    assert all(target.is_met for target in targets_of(good, minimal))
    early = Counter({("before", "gold-anywhere"): 1, ("burst", "bronze-home"): 1})
    poor = Played(offered, Counter({gold: 90}), early, cloud_s=130.0)
    assert not any(target.is_met for target in targets_of(poor, minimal))
