"""The alarm: seldom without cause, soon with one (seeded draws: the same every time)."""

from random import Random

import pytest

from cascade.staying.alarm import Alarm


def heard(rate: float, allowed: float, *, most: int, seed: int, patience: float = 2_000.0) -> int | None:
    """After how many samples it rings."""
    random, alarm = Random(seed), Alarm(allowed, patience)
    for at in range(most):
        if alarm.hear(float(random.random() < rate)):
            return at + 1
    return None


@pytest.mark.parametrize("allowed", [0.02, 0.1, 0.4])
def test_false_alarms_are_as_rare_as_is_said(allowed: float) -> None:
    """At the very limit the time to one is `patience` samples on average or more."""
    times = [heard(allowed, allowed, most=6_000, seed=seed) or 6_000 for seed in range(20)]
    assert sum(times) / len(times) >= 2_000


@pytest.mark.parametrize(("rate", "within"), [(0.3, 120), (0.15, 600)])
def test_a_rise_is_heard(rate: float, within: int) -> None:
    """Threefold soon, by half after a while; half of all runs by then."""
    times = sorted(heard(rate, 0.1, most=5_000, seed=seed) or 5_000 for seed in range(15))
    assert times[7] <= within


def test_a_rise_after_long_quiet_is_heard_too() -> None:
    """Years of good answers buy no patience."""
    random, alarm = Random(3), Alarm(0.1)
    for _ in range(20_000):
        alarm.hear(float(random.random() < 0.03))
    assert not alarm.rings
    assert any(alarm.hear(float(random.random() < 0.5)) for _ in range(100))


def test_it_stays_rung() -> None:
    """Good samples do not take it back; the strain stays a number."""
    alarm = Alarm(0.05)
    for _ in range(2_000):
        alarm.hear(1.0)
    for _ in range(50):
        assert alarm.hear(0.0)
    assert alarm.strain < 1e12


@pytest.mark.parametrize("allowed", [-1.0, 0.0, 1.0, 5.0])
def test_ends_are_no_fault(allowed: float) -> None:
    """A promise of nothing or of everything divides by nothing."""
    alarm = Alarm(allowed)
    assert not alarm.hear(0.0)
    assert alarm.seen == 1
