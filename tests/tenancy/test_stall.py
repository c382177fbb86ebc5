"""What those who decode can bear: budgets against the promise itself, reckoned the long way."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.cost import CostModel
from routing.ledger import Charge, Ledger, StreamObjective
from tenancy.share import BudgetShare
from tenancy.stall import SLOWER, DecodeStalls

STEP_S = 0.0121 * (1 + SLOWER)
"""As the prior has it of one sequence, as slow as it may be."""


def scene() -> tuple[Ledger, DecodeStalls]:
    ledger, costs = Ledger(), CostModel()
    ledger.resize(2)
    costs.resize(2)
    stalls = DecodeStalls(ledger, costs)
    ledger.attach(stalls)
    return ledger, stalls


def charge(
    ledger: Ledger, prefill_s: float, now_s: float, pledge: StreamObjective | None = None, slot: int = 0
) -> Charge:
    return ledger.charge(
        slot,
        prefill_tokens=prefill_s * 12_000,
        prefill_s=prefill_s,
        kv_tokens=100,
        sequences=1,
        now_s=now_s,
        pledge=pledge,
    )


def test_an_engine_without_objectives_takes_anything() -> None:
    """Nobody there can be stalled beyond what he was promised."""
    ledger, stalls = scene()
    charge(ledger, 5.0, 0.0)
    assert stalls.room_now_s(0, 0.0) == inf


def test_a_new_stream_bears_what_it_will_surely_earn() -> None:
    """Sure tokens x (T - step), less what is put behind it."""
    ledger, stalls = scene()
    one = charge(ledger, 0.5, 0.0, StreamObjective(0.05, 100))
    expected = 100 * (0.05 - STEP_S)
    assert stalls.room_now_s(0, 0.0) == pytest.approx(expected, rel=1e-3)
    ledger.prefill_done(one, 0.5)
    assert stalls.room_now_s(0, 0.5) == pytest.approx(expected, rel=1e-3)
    charge(ledger, 1.0, 0.6)
    assert stalls.room_now_s(0, 0.6) == pytest.approx(expected - 1.0, abs=0.02)


def test_a_stream_earns_with_every_token() -> None:
    """After k undisturbed tokens it can bear k x (T - step)."""
    ledger, stalls = scene()
    ledger.prefill_done(charge(ledger, 0.5, 0.0, StreamObjective(0.05, 10)), 0.5)
    decoded_s = 300 * STEP_S
    assert stalls.room_now_s(0, 0.5 + decoded_s) == pytest.approx(300 * (0.05 - STEP_S), rel=1e-2)


def test_the_tightest_objective_counts() -> None:
    """An engine takes what the one can bear that bears least."""
    ledger, stalls = scene()
    ledger.prefill_done(charge(ledger, 0.1, 0.0, StreamObjective(0.05, 100)), 0.1)
    before_s = stalls.room_now_s(0, 0.1)
    ledger.prefill_done(charge(ledger, 0.1, 0.1, StreamObjective(0.03, 10)), 0.2)
    assert stalls.room_now_s(0, 0.2) < before_s / 2


def test_those_of_one_step_have_not_stalled_each_other() -> None:
    """Their first tokens came together, so each saw nothing of the other's prefill."""
    ledger, stalls = scene()
    pledge = StreamObjective(0.05, 100)
    first, second = charge(ledger, 0.3, 0.0, pledge), charge(ledger, 0.3, 0.0, pledge)
    ledger.prefill_done(first, 0.6)
    ledger.prefill_done(second, 0.6)
    assert stalls.room_now_s(0, 0.6) == pytest.approx(100 * (0.05 - STEP_S), rel=2e-2)


def test_who_has_left_bars_no_one() -> None:
    """With the last promise gone the engine takes anything again."""
    ledger, stalls = scene()
    one = charge(ledger, 0.1, 0.0, StreamObjective(0.05, 10))
    two = charge(ledger, 0.1, 0.0)
    ledger.release(one, 0.3)
    assert stalls.room_now_s(0, 0.3) == inf
    ledger.release(two, 0.4)
    assert not stalls.room_s
    assert not stalls._stands


@given(
    st.lists(
        st.tuples(st.floats(0.01, 0.5), st.floats(0.0, 0.5), st.sampled_from([None, 0.05, 0.15]), st.integers(1, 80)),
        min_size=1,
        max_size=12,
    )
)
def test_the_heaps_agree_with_reckoning_each_stream_by_itself(
    visits: list[tuple[float, float, float | None, int]],
) -> None:
    """One after the other on one engine, each with its first token when its prefill is done, all still there."""
    ledger, stalls = scene()
    now_s = 0.0
    begun: list[tuple[float, float, float | None, int]] = []
    steps: list[tuple[float, float]] = []
    for prefill_s, pause_s, tpot_s, sure in visits:
        one = charge(ledger, prefill_s, now_s, None if tpot_s is None else StreamObjective(tpot_s, sure))
        steps.append((now_s, stalls.step_s(0)))
        now_s += prefill_s
        ledger.prefill_done(one, now_s)
        begun.append((now_s, sum([visit[0] for visit in visits[: len(begun) + 1]]), tpot_s, sure))
        now_s += pause_s + 0.002
    done_s = sum([visit[0] for visit in visits])
    step_s = stalls.step_s(0)
    least: float = inf
    for at_s, before_s, tpot_s, sure in begun:
        if tpot_s is None:
            continue
        allowed_s = 0.0
        for (from_s, each_s), (until_s, _) in zip(steps, [*steps[1:], (now_s, 0.0)], strict=True):
            allowed_s += max(0.0, until_s - max(from_s, at_s)) * (1 - each_s / tpot_s)
        stalled_s = done_s - before_s
        earned_s = (allowed_s - stalled_s) * tpot_s / step_s
        least = min(least, max(earned_s, sure * (tpot_s - step_s) - stalled_s))
    # The step that a stream was promised by was that of its own first token: the fewer were there, the shorter it was.
    assert stalls.room_now_s(0, now_s) == pytest.approx(least, rel=0.15, abs=0.15)


def test_steps_are_learned_from_what_was_no_stall() -> None:
    """A stream of 101 tokens that took 4 s of which 2 s were another's prefill had steps of 20 ms."""
    ledger, stalls = scene()
    for _ in range(200):
        one = charge(ledger, 0.1, 0.0)
        ledger.prefill_done(one, 0.1)
        other = charge(ledger, 2.0, 0.2)
        ledger.prefill_done(other, 2.2)
        stalls.learn(one, 1.0, 101, 4.1)
        ledger.release(one, 4.1)
        ledger.release(other, 4.1)
    assert stalls.step_s(0) == pytest.approx(0.020 * 0.012 / 0.0121, rel=0.12)


def test_a_stream_that_was_under_way_bears_what_it_earns_from_now_on() -> None:
    """A peer that is back states what it has open: its prefill was done before, and stalls neither it nor others."""
    ledger, stalls = scene()
    one = charge(ledger, 0.5, 0.0, StreamObjective(0.05, 100))
    ledger.prefill_done(one, 0.5)
    before_s = stalls.room_now_s(0, 1.0)
    under_way = Charge(0, 0, 6_000, 0.5, 100, 1, in_prefill=False, objective=StreamObjective(0.05, 100))
    ledger.put(under_way, 1.0)
    assert ledger.queued_s(tuple, 1.0)[0] == 0
    assert stalls.room_now_s(0, 1.0) == pytest.approx(0.0, abs=1e-9)
    assert 0 < stalls.room_now_s(0, 2.0) < 0.05 / STEP_S
    ledger.release(under_way, 2.0)
    assert stalls.room_now_s(0, 2.0) >= before_s


def test_what_missing_peers_may_have_placed_stalls_streams() -> None:
    """The rest of what the engine can bear is theirs, in part: its streams do not earn as if they were alone."""
    rooms = []
    for is_shared in (False, True):
        ledger, stalls = scene()
        ledger.prefill_done(charge(ledger, 0.1, 0.0, StreamObjective(0.05, 2)), 0.1)
        if is_shared:
            stalls.keep_to(BudgetShare(0.25, 0.05, (10, 0), 0.1), 0.1)
        assert stalls.has_share(0, 10, 3.0)
        rooms.append(stalls.room_now_s(0, 3.0))
    assert 0.2 < rooms[1] / rooms[0] < 0.8


def test_a_share_counts_what_was_placed_since_peers_were_silent() -> None:
    """What was given out before the silence was noticed is not given out again."""
    ledger, stalls = scene()
    charge(ledger, 0.1, 0.0, StreamObjective(0.05, 100))
    charge(ledger, 3.0, 1.0, StreamObjective(0.05, 100))
    stalls.keep_to(BudgetShare(0.5, 0.05, (10, 0), 0.5), 0.5)
    assert not stalls.has_share(0, 10, 1.1)
    assert stalls.has_share(1, 10, 1.1)
    assert stalls.has_share(0, 10, 15.0)


def test_an_idle_engine_too_slow_for_an_objective_is_used_while_peers_are_missing() -> None:
    """A tier whose objective no engine keeps must not stop all tiers: one request at a time is no more than others."""
    ledger, stalls = scene()
    stalls.keep_to(BudgetShare(0.5, STEP_S / 2, (0,), 0.0), 0.0)
    assert stalls.has_share(0, 0, 0.0)
    one = charge(ledger, 0.5, 0.0)
    assert not stalls.has_share(0, 0, 1.0)
    ledger.release(one, 2.0)
    assert stalls.has_share(0, 0, 100.0)
    stalls.keep_to(BudgetShare(0.5, 2 * STEP_S, (0,), 0.0), 0.0)
    assert not stalls.has_share(0, -1, 100.0 + 1e-3), "one that earns its share waits for it"


def test_a_stream_bears_prefill_of_ranks_that_step_with_its_own() -> None:
    """What is put on another rank takes from its budget, and what is too much for it is not borne there."""
    ledger, stalls = scene()
    ledger.step_groups = dict.fromkeys((0, 1), (0, 1))
    one = charge(ledger, 0.0, 0.0, StreamObjective(0.05, 100))
    ledger.prefill_done(one, 0.0)
    before = stalls.room_now_s(0, 0.0)
    assert stalls.is_borne_beside(1, before - 0.1, 0.0)
    assert not stalls.is_borne_beside(1, before + 0.1, 0.0)
    charge(ledger, 1.0, 0.0, slot=1)
    assert stalls.room_now_s(0, 0.0) == pytest.approx(before - 1.0)
    # Beside the second that is queued there by now, as much on its own rank stalls it no further.
    assert stalls.is_borne_beside(1, before - 1.1, 0.0)
    assert not stalls.is_borne_beside(1, before - 0.9, 0.0)
