"""The local scaler follows the HPA's and KEDA's rules."""

from __future__ import annotations

from tests.gateway.scaling.hpa import Autoscaler, ScalingRules


def test_a_change_within_the_tolerance_is_ignored() -> None:
    """Twelve instead of eleven is 9 %: not acted on, unless the tolerance is zero."""
    assert Autoscaler(ScalingRules(max_replicas=20), replicas=11).sync([12.0], 0.0) == 11
    assert Autoscaler(ScalingRules(max_replicas=20), replicas=11).sync([13.0], 0.0) == 13
    assert Autoscaler(ScalingRules(max_replicas=20, tolerance=0.0), replicas=11).sync([12.0], 0.0) == 12


def test_the_highest_trigger_wins() -> None:
    """Of several metrics."""
    assert Autoscaler(ScalingRules(), replicas=2).sync([3.0, 5.0], 0.0) == 5


def test_it_rises_by_doubling_or_four_and_falls_after_stabilization() -> None:
    """The highest recommendation of the window counts on the way down."""
    scaler = Autoscaler(ScalingRules(max_replicas=100), replicas=1)
    assert scaler.sync([50.0], 0.0) == 5
    assert scaler.sync([50.0], 5.0) == 5
    assert scaler.sync([50.0], 16.0) == 10
    assert scaler.sync([50.0], 32.0) == 20
    assert scaler.sync([2.0], 40.0) == 20
    assert scaler.sync([2.0], 330.0) == 20
    assert scaler.sync([2.0], 340.0) == 2


def test_failed_calls_keep_the_count_and_the_fallback_raises_it() -> None:
    """`currentReplicasIfHigher` never lowers."""
    scaler = Autoscaler(ScalingRules(fallback_replicas=4), replicas=2)
    assert [scaler.sync([None], at) for at in (0.0, 15.0)] == [2, 2]
    assert scaler.sync([None], 30.0) == 4
    assert Autoscaler(ScalingRules(fallback_replicas=1), replicas=3).sync([None], 0.0) == 3


def test_zero_and_one_are_of_keda() -> None:
    """Active wakes at once; inactive for the cool-down puts to sleep."""
    scaler = Autoscaler(ScalingRules(cooldown_s=100.0))
    assert scaler.sync([3.0], 0.0) == 0
    assert scaler.activate(0.0) == 1
    assert scaler.deactivate(50.0) == 1
    assert scaler.deactivate(100.0) == 0
