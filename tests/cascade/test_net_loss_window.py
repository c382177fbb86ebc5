"""Limits of the drift alarm against the distribution of their losses, and the windows that count them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade.net_loss_window import (
    FALSE_STOP,
    FALSE_SUSPICION,
    NOTICED,
    RUN,
    WINDOWS,
    DriftReference,
    NetLossWindow,
    alarm_limits,
)


def ever_stopped(windows: list[NetLossWindow], share: float, seed: int, count: int) -> bool:
    """Whether so many outcomes with this share of losses raise the alarm."""
    random = Random(seed)
    for _ in range(count):
        outcome = int(random.random() < share)
        for window in windows:
            window.observe(outcome)
    return any(window.is_raised for window in windows)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.4])
def test_false_alarms_are_as_rare_as_stated(share: float) -> None:
    """References and runs drawn with one share of losses: at most 5 % of 100 runs are stopped (seeded)."""
    stopped = 0
    for seed in range(100):
        random = Random(seed)
        worse = sum(random.random() < share for _ in range(400))
        limits = alarm_limits(DriftReference(400, worse, 0), 0.02, 0.1)
        stopped += ever_stopped(list(map(NetLossWindow, limits)), share, seed + 1_000, RUN)
    assert stopped <= 5


def test_a_break_that_stands_out_is_noticed_within_the_shortest_window() -> None:
    """As the limits state themselves, by drawn outcomes (seeded)."""
    (limits,) = alarm_limits(DriftReference(1_000, 30, 0), 0.05, 0.12)
    assert (limits.window, limits.false_stop <= FALSE_STOP) == (WINDOWS[0], True)
    assert limits.noticed >= NOTICED
    noticed = 0
    for seed in range(100):
        random, window, is_noticed = Random(seed), NetLossWindow(limits), False
        for _ in range(WINDOWS[0]):
            window.observe(int(random.random() < 0.15))
            is_noticed = is_noticed or window.is_suspected
        noticed += is_noticed
    assert noticed >= 94


def test_a_small_break_gets_a_longer_window_beside_the_shortest() -> None:
    """Which notices what 200 comparisons cannot tell from chance."""
    short, longer = alarm_limits(DriftReference(2_000, 40, 20), 0.01, 0.03)
    assert (short.window, longer.window > short.window) == (WINDOWS[0], True)
    assert longer.noticed > short.noticed
    assert short.false_stop + longer.false_stop <= FALSE_STOP
    assert short.false_suspicion + longer.false_suspicion <= FALSE_SUSPICION


def test_the_surest_answers_show_a_break_first() -> None:
    """Where hardly any of them loses, their window notices what the whole cannot; the errors of all stay bounded."""
    reference, surest = DriftReference(800, 40, 0), DriftReference(480, 2, 0)
    alone = alarm_limits(reference, 0.01, 0.05)
    short, own, *longer = alarm_limits(reference, 0.01, 0.05, surest)
    assert (short.window, own.window, own.shadows) == (WINDOWS[0], 120, WINDOWS[0])
    assert [limits.is_of_surest for limits in (short, own, *longer)] == [False, True] + [False] * len(longer)
    assert own.noticed > alone[0].noticed + 0.2
    assert sum(limits.false_stop for limits in (short, own, *longer)) <= FALSE_STOP
    assert sum(limits.false_suspicion for limits in (short, own, *longer)) <= FALSE_SUSPICION


def test_without_a_gain_the_surest_have_no_window() -> None:
    """Where they lose as often as the others, or none of them is known."""
    reference = DriftReference(800, 120, 0)
    assert alarm_limits(reference, 0.05, 0.15, DriftReference(480, 72, 0)) == alarm_limits(reference, 0.05, 0.15)
    assert alarm_limits(reference, 0.05, 0.15, DriftReference(0, 0, 0)) == alarm_limits(reference, 0.05, 0.15)


def test_what_a_small_reference_leaves_open_is_in_the_stated_probability() -> None:
    """The same shares of fewer samples: a break is noticed less often."""
    few, many = (alarm_limits(DriftReference(count, count * 0.05, 0), 0.02, 0.1)[0].noticed for count in (100, 2_000))
    assert few < 0.92 < many


def test_a_small_reference_asks_for_more_losses() -> None:
    """Its own uncertainty is part of the limit."""
    few, many = (alarm_limits(DriftReference(count, count * 0.05, 0), 0.02, 0.05)[0] for count in (100, 10_000))
    assert few.stop > many.stop


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2_000), st.floats(0, 1), st.floats(0, 1), st.floats(0.001, 1), st.floats(0.01, 2))
def test_limits_exist_for_any_reference(samples: int, worse: float, better: float, slack: float, shift: float) -> None:
    """Without samples, with nothing but losses or gains, and for breaks of any size."""
    reference = DriftReference(samples, samples * worse, samples * (1 - worse) * better)
    for limits in alarm_limits(reference, slack, shift):
        assert 1 <= limits.suspect <= limits.stop <= limits.window
        assert 0.0 <= limits.noticed <= 1.0


def test_gains_offset_losses() -> None:
    """Losses beyond the limit with as many gains raise nothing; without them they do, and the alarm stays."""
    (limits,) = alarm_limits(DriftReference(1_000, 30, 10), 0.05, 0.15)
    offset, plain = NetLossWindow(limits), NetLossWindow(limits)
    for number in range(100):
        offset.observe(1 if number % 2 else -1)
        plain.observe(number % 2)
    assert (offset.is_raised, offset.is_suspected, plain.is_raised) == (False, False, True)
    for _ in range(limits.window):
        plain.observe(0)
    assert (plain.worse, plain.is_raised, plain.is_suspected, plain.level) == (0, True, False, 1.0)
