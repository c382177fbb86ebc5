"""Windows never forget too early, gauges and periods give back what is theirs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tenancy.limits.account_usage import SLOT_S, ConcurrencyCounter, PeriodCounter, SlidingWindowCounter

SPAN_S = 60.0

STEPS = st.lists(st.tuples(st.floats(0.0, 20.0), st.integers(1, 9)), max_size=60)


@given(STEPS)
def test_a_window_counts_at_least_what_the_last_sixty_seconds_had(steps: list[tuple[float, int]]) -> None:
    """And at most what came within half a second more."""
    window, now_s, history = SlidingWindowCounter(), 1e9, []
    for pause_s, amount in steps:
        now_s += pause_s
        window.advance(now_s)
        window.add(amount, now_s)
        history.append((now_s, amount))
        assert window.used >= sum(each for at_s, each in history if at_s > now_s - SPAN_S)
        assert window.used <= sum(each for at_s, each in history if at_s > now_s - SPAN_S - SLOT_S)


@given(STEPS, st.integers(1, 300))
def test_a_window_says_when_room_will_be_there(steps: list[tuple[float, int]], wanted: int) -> None:
    """At that moment so much has gone, and half a second before it had not."""
    window, now_s = SlidingWindowCounter(), 1e9
    for pause_s, amount in steps:
        now_s += pause_s
        window.advance(now_s)
        window.add(amount, now_s)
    used, wait_s = window.used, window.frees_in_s(wanted, now_s)
    if wanted > used:
        assert wait_s == SPAN_S
        return
    window.advance(now_s + wait_s - SLOT_S - 0.001)
    assert wait_s < SLOT_S or window.used > used - wanted
    window.advance(now_s + wait_s + 0.001)
    assert window.used <= used - wanted


def test_what_is_taken_back_is_taken_from_when_it_was_granted() -> None:
    """What has left the window is not taken off what is still in it."""
    window = SlidingWindowCounter()
    early = window.add(5, 100.0)
    late = window.add(7, 130.0)
    window.advance(161.0)
    window.take_back(5, early)
    assert window.used == 7
    window.take_back(3, late)
    assert window.used == 4


def test_what_is_taken_back_does_not_expire_as_well() -> None:
    """When a slot expires, only its remainder is removed: after amounts of the newest slot, an older one, and both."""
    window = SlidingWindowCounter()
    early = window.add(9, 100.0)
    window.take_back(4, early)
    late = window.add(7, 130.0)
    window.take_back(3, early)
    window.take_back(8, late)
    window.add(6, 150.0)
    assert window.used == 7
    window.advance(161.0)
    assert window.used == 6
    window.advance(191.0)
    assert window.used == 6
    window.advance(211.0)
    assert window.used == 0


def test_a_gauge_is_free_when_what_it_holds_has_left() -> None:
    """And guesses when the next will leave by how long others stayed."""
    gauge = ConcurrencyCounter()
    for _ in range(4):
        gauge.add(1, 0.0)
    for _ in range(200):
        gauge.left_after(8.0)
    assert 1.9 < gauge.frees_in_s(1, 0.0) < 2.1
    for _ in range(4):
        gauge.take_back(1, 0)
    assert gauge.used == 0


def test_a_period_ends_at_a_multiple_of_its_length() -> None:
    """A day is spent until midnight; what is given back after it was another day's."""
    period = PeriodCounter(86_400.0)
    slot = period.add(3.5, 86_400.0 * 10 + 80_000)
    assert period.frees_in_s(1.0, 86_400.0 * 10 + 80_000) == 6_400
    period.advance(86_400.0 * 11)
    assert period.used == 0
    period.add(2.0, 86_400.0 * 11 + 1)
    period.take_back(3.5, slot)
    assert period.used == 2.0


def test_a_window_owes_what_was_used_beyond_its_room() -> None:
    """Ten times the limit at once is paid for ten windows; then all is free again."""
    window, now_s = SlidingWindowCounter(), 1e9
    window.add(1_000, now_s, 100.0)
    assert window.owed == 900
    for passed in range(1, 10):
        window.advance(now_s + passed * (SPAN_S + SLOT_S), 100.0)
        assert window.used == 1_000 - passed * 100
    assert window.owed == 0
    window.advance(now_s + 10 * (SPAN_S + SLOT_S) + 1, 100.0)
    assert window.used == 0


@given(STEPS, st.integers(20, 200))
def test_a_window_pays_the_same_however_seldom_it_is_looked_at(steps: list[tuple[float, int]], pause_s: int) -> None:
    """Debts are charged to the moment at which their slot was forgotten, not to that of the look."""
    often, seldom, now_s = SlidingWindowCounter(), SlidingWindowCounter(), 1e9
    for step_s, amount in steps:
        now_s += step_s
        for window in (often, seldom):
            window.advance(now_s, 15.0)
            window.add(amount, now_s, 15.0)
    for tick in range(4 * pause_s):
        often.advance(now_s + tick / 4, 15.0)
    often.advance(now_s + pause_s, 15.0)
    seldom.advance(now_s + pause_s, 15.0)
    assert (often.used, often.owed) == (seldom.used, seldom.owed)


@given(STEPS, st.integers(5, 40).map(float))
def test_a_window_forgets_no_more_than_its_room_in_each_sixty_seconds(
    steps: list[tuple[float, int]], room: float
) -> None:
    """Whatever was charged, it is forgotten no faster than one room a window, and in the end all of it is."""
    window, began_s, total = SlidingWindowCounter(), 1e9, 0.0
    now_s = began_s
    for pause_s, amount in steps:
        now_s += pause_s
        window.advance(now_s, room)
        window.add(amount, now_s, room)
        total += amount
        windows = (now_s - began_s) // (SPAN_S + SLOT_S)
        assert window.used >= total - room * (windows + 1) - 1e-6
    wait_s = window.frees_in_s(window.used, now_s, room)
    window.advance(now_s + wait_s + SLOT_S, room)
    assert window.used == 0


def test_what_is_given_back_pays_debts_first() -> None:
    """A reserve that was not needed leaves room that somebody else has used already."""
    window = SlidingWindowCounter()
    early = window.add(60, 100.0, 100.0)
    window.add(70, 110.0, 100.0)
    assert window.owed == 30
    window.take_back(25, early)
    assert window.owed == 5
    window.take_back(25, early)
    assert (window.used, window.owed) == (80, 0)
    window.advance(161.0, 100.0)
    assert window.used == 40
    window.advance(171.0, 100.0)
    assert window.used == 0


def test_a_period_begins_with_what_the_last_one_owes() -> None:
    """Each day pays as much as one day has; a day on which nothing was used pays too."""
    period, day_s = PeriodCounter(86_400.0), 86_400.0
    period.add(3.5, day_s * 10, 1.0)
    assert period.owed == 2.5
    assert period.frees_in_s(3.5, day_s * 10, 1.0) == day_s * 4
    period.advance(day_s * 11, 1.0)
    assert (period.used, period.owed) == (2.5, 1.5)
    period.advance(day_s * 13, 1.0)
    assert (period.used, period.owed) == (0.5, 0.0)
    period.advance(day_s * 14, 1.0)
    assert period.used == 0
