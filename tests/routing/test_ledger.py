"""What was put on each engine: every charge comes back exactly once, whatever happens in between."""

from collections.abc import Sequence
from math import e
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.ledger import (
    EXTERNAL_LOAD_TTL_S,
    NO_EXTERNAL_LOAD,
    NOTICED_STALL_S,
    SHARE_MEMORY_S,
    STEP_S,
    STEP_TOKENS,
    Charge,
    ExternalLoad,
    Ledger,
)

SLOTS = 3
PACE = 0.01
"""Seconds per token."""


@pytest.fixture
def ledger() -> Ledger:
    return new_ledger()


def new_ledger() -> Ledger:
    ledger = Ledger()
    ledger.resize(SLOTS)
    return ledger


def charge(ledger: Ledger, slot: int = 0, *, prefill: float = 100.0, now_s: float = 0.0) -> Charge:
    return ledger.charge(
        slot, prefill_tokens=prefill, prefill_s=prefill * PACE, kv_tokens=prefill + 10, sequences=1, now_s=now_s
    )


def every_slot(column: Sequence[float]) -> Sequence[float]:
    return column


def ahead(ledger: Ledger, now_s: float = 0.0) -> list[float]:
    """In tokens."""
    return [seconds / PACE for seconds in ledger.queued_s(every_slot, now_s)]  # type: ignore[arg-type]


amounts = st.floats(0, 1e7, allow_nan=False)
charges = st.lists(st.tuples(st.integers(0, SLOTS - 1), amounts, amounts, st.integers(1, 4)), max_size=20)


@given(charges, st.randoms(use_true_random=False))
def test_the_ledger_is_empty_when_all_has_left(placed: list[tuple[int, float, float, int]], rng: object) -> None:
    """In whatever order first tokens and ends come, and however often they are told: exactly nothing is left."""
    ledger = new_ledger()
    made = [
        ledger.charge(slot, prefill_tokens=prefill, prefill_s=prefill, kv_tokens=kv, sequences=count, now_s=0)
        for slot, prefill, kv, count in placed
    ]
    assert ledger.is_empty() == (not made)
    ends = [*(("first", each) for each in made), *(("end", each) for each in made), *(("end", each) for each in made)]
    rng.shuffle(ends)  # type: ignore[attr-defined]
    for now_s, (what, each) in enumerate(ends):
        (ledger.prefill_done if what == "first" else ledger.release)(each, now_s)
    assert ledger.is_empty()
    assert ledger.running == [0] * SLOTS
    assert ledger.kv_tokens == ledger.prefill_tokens == ledger.all_running == ledger.all_kv_tokens == [0.0] * SLOTS
    assert ahead(ledger, now_s=1000) == [0.0] * SLOTS


@given(charges, st.integers(0, 20))
def test_the_ledger_is_the_sum_of_what_is_there(placed: list[tuple[int, float, float, int]], left: int) -> None:
    """At any moment each engine has the sum of its open charges, and nothing is negative."""
    ledger = new_ledger()
    made = [
        ledger.charge(slot, prefill_tokens=prefill, prefill_s=prefill, kv_tokens=kv, sequences=count, now_s=0)
        for slot, prefill, kv, count in placed
    ]
    for each in made[:left]:
        ledger.release(each, 1)
    for slot in range(SLOTS):
        there = [each for each in made[left:] if each.slot == slot]
        assert ledger.running[slot] == ledger.all_running[slot] == sum(each.sequences for each in there)
        assert ledger.kv_tokens[slot] == pytest.approx(sum(each.kv_tokens for each in there), abs=1)
        assert ledger.prefill_tokens[slot] == pytest.approx(sum(each.prefill_tokens for each in there), abs=1)
        assert min(ledger.kv_tokens[slot], ledger.prefill_tokens[slot]) >= -1


def test_a_first_token_frees_the_queue_but_not_the_place(ledger: Ledger) -> None:
    """A request that decodes stands in nobody's way to prefill, but still runs and holds its KV."""
    made = charge(ledger)
    ledger.prefill_done(made, 1.0)
    assert (ledger.prefill_tokens[0], ledger.kv_tokens[0], ledger.running[0]) == (0.0, 110.0, 1)
    assert ahead(ledger)[0] == 0.0
    assert not ledger.is_empty()


def test_the_head_of_the_queue_is_worked_on(ledger: Ledger) -> None:
    """What waits shrinks as time passes at the engine's pace, but never by more than the head's own work."""
    charge(ledger, prefill=100.0, now_s=10.0)
    charge(ledger, prefill=50.0, now_s=10.2)
    assert ahead(ledger, now_s=10.0)[0] == pytest.approx(150)
    assert ahead(ledger, now_s=10.5)[0] == pytest.approx(100)
    assert ahead(ledger, now_s=99.0)[0] == pytest.approx(50)
    assert ahead(ledger, now_s=99.0)[1:] == [0.0, 0.0]


def test_the_next_in_line_begins_when_the_head_is_done(ledger: Ledger) -> None:
    """Its own work counts from then."""
    first, _ = charge(ledger, prefill=100.0), charge(ledger, prefill=50.0)
    ledger.prefill_done(first, 3.0)
    assert ahead(ledger, now_s=3.0)[0] == pytest.approx(50)
    assert ahead(ledger, now_s=3.2)[0] == pytest.approx(30)


@pytest.mark.parametrize("leaves", ["prefill_done", "release"])
def test_one_who_leaves_the_queue_does_not_undo_the_heads_progress(ledger: Ledger, leaves: str) -> None:
    """A client that goes away while it waits says nothing of the request that is being worked on."""
    charge(ledger, prefill=100.0, now_s=0.0)
    second = charge(ledger, prefill=50.0, now_s=0.0)
    getattr(ledger, leaves)(second, 0.9)
    assert ahead(ledger, now_s=0.9)[0] == pytest.approx(10)


def test_a_queue_that_was_empty_begins_again(ledger: Ledger) -> None:
    """Time that passed with nothing to do is not work done."""
    ledger.release(charge(ledger, now_s=0.0), 1.0)
    charge(ledger, prefill=100.0, now_s=50.0)
    assert ahead(ledger, now_s=50.0)[0] == pytest.approx(100)


def test_choices_are_counted(ledger: Ledger) -> None:
    """Who was chosen last, among all engines."""
    for slot in (2, 0, 2):
        charge(ledger, slot)
    assert ledger.last_turn == [2, 0, 3]


def test_external_load_stands_next_to_our_own(ledger: Ledger) -> None:
    """It counts in what decisions read, and never in what we have to give back."""
    made = charge(ledger, 1)
    ledger.observe_external(1, ExternalLoad(running=5, waiting=2, kv_tokens=900, at_s=10.0))
    assert (ledger.running[1], ledger.kv_tokens[1]) == (1, 110.0)
    assert ledger.all_running[1] >= 6
    assert ledger.all_kv_tokens[1] == 1010
    ledger.release(made, 11.0)
    assert ledger.is_empty()
    assert ledger.all_kv_tokens[1] == 900


def test_external_load_is_believed_for_a_while(ledger: Ledger) -> None:
    """Without scrapes it counts as last seen, and after a minute no longer; a newer scrape outlives an older one."""
    ledger.observe_external(0, ExternalLoad(running=5, at_s=10.0))
    ledger.observe_external(1, ExternalLoad(running=7, at_s=30.0))
    for now_s, expected in (
        (10.0 + EXTERNAL_LOAD_TTL_S - 1, [5, 7, 0]),
        (10.0 + EXTERNAL_LOAD_TTL_S, [0, 7, 0]),
        (30.0 + EXTERNAL_LOAD_TTL_S, [0, 0, 0]),
    ):
        ledger.forget_stale(now_s)
        assert list(ledger.all_running) == expected
    assert ledger.external == [NO_EXTERNAL_LOAD] * SLOTS


def test_reaching_keeps_what_is_there(ledger: Ledger) -> None:
    """New engines come while old ones work."""
    made = charge(ledger, 2)
    ledger.resize(5)
    ledger.resize(1)
    assert len(ledger.running) == len(ledger.last_turn) == len(ledger.all_running) == 5
    ledger.release(made, 0)
    assert ledger.is_empty()
    assert repr(ledger) == "<Ledger 0 running, 0 prefill tokens>"


PLACES = {slot: place for place, slot in enumerate(range(SLOTS))}


def open_steps(ledger: Ledger, now_s: float) -> list[tuple[int, int, float]]:
    return list(ledger.open_steps(PLACES, now_s))


def test_who_joins_a_step_before_it_begins_learns_who_ends_in_it(ledger: Ledger) -> None:
    """Behind a prefill the next step is open until that one ends; short prompts share it, each counts once."""
    charge(ledger, prefill=STEP_TOKENS, now_s=0.0)
    assert open_steps(ledger, 0.0) == []
    charge(ledger, prefill=100.0, now_s=1.0)
    charge(ledger, prefill=200.0, now_s=1.0)
    begins_s = STEP_TOKENS * PACE
    assert open_steps(ledger, begins_s - 0.1) == [(0, 2, STEP_TOKENS - 300)]
    assert open_steps(ledger, begins_s + 0.1) == []


def test_a_long_prompt_ends_in_its_last_step(ledger: Ledger) -> None:
    """Whoever was to end in the step it fills ends there still, but no longer in the last."""
    charge(ledger, prefill=STEP_TOKENS, now_s=0.0)
    charge(ledger, prefill=100.0, now_s=1.0)
    charge(ledger, prefill=2 * STEP_TOKENS, now_s=1.0)
    ((place, ending, room),) = open_steps(ledger, 1.0)
    assert (place, ending) == (0, 1)
    assert room == pytest.approx(STEP_TOKENS - 100)


def test_an_engine_that_only_decodes_takes_up_prefill_with_its_next_step(ledger: Ledger) -> None:
    """So what comes in the same moment shares its step; on an idle engine it has begun at once."""
    ledger.prefill_done(charge(ledger, 0, prefill=10.0, now_s=0.0), 0.1)
    for slot in (0, 1):
        charge(ledger, slot, prefill=500.0, now_s=5.0)
    assert open_steps(ledger, 5.0) == [(0, 1, STEP_TOKENS - 500)]
    assert open_steps(ledger, 5.0 + STEP_S) == []


def test_a_first_token_is_the_end_of_a_step(ledger: Ledger) -> None:
    """What waits fills steps from then on, whatever was thought of it before."""
    head = charge(ledger, prefill=10 * STEP_TOKENS, now_s=0.0)
    charge(ledger, prefill=100.0, now_s=0.0)
    charge(ledger, prefill=STEP_TOKENS, now_s=0.0)
    ledger.prefill_done(head, 3.0)
    ((_, ending, room),) = open_steps(ledger, 3.0)
    assert ending == 1
    assert room == pytest.approx(STEP_TOKENS - 100)
    assert open_steps(ledger, 3.1 + STEP_TOKENS * PACE) == []


def test_steps_of_other_engines_are_left_out_and_old_ones_swept(ledger: Ledger) -> None:
    """A roster sees its own engines only; a thousand engines leave nothing behind."""
    ledger.resize(1000)
    for slot in range(1000):
        charge(ledger, slot, prefill=STEP_TOKENS, now_s=0.0)
        charge(ledger, slot, prefill=10.0, now_s=0.0)
    assert list(ledger.open_steps({7: 0}, 0.0)) == [(0, 1, STEP_TOKENS - 10)]
    late_s = 2 * STEP_TOKENS * PACE
    assert open_steps(ledger, late_s) == []
    assert len(ledger._open_steps) == 0


def test_how_much_of_an_engines_time_prefill_was_requested(ledger: Ledger) -> None:
    """As a share that fades; what only has room reserved asks for none."""

    def shares(now_s: float) -> list[float]:
        return ledger.prefill_shares(itemgetter(0, 1), now_s)

    charge(ledger, 0, prefill=200.0, now_s=10.0)
    ledger.charge(1, prefill_tokens=0.0, prefill_s=2.0, kv_tokens=10.0, sequences=1, now_s=10.0, queues=False)
    first = 200.0 * PACE / SHARE_MEMORY_S
    assert shares(10.0) == pytest.approx([first, 0.0])
    assert shares(10.0 + SHARE_MEMORY_S) == pytest.approx([first / e, 0.0])
    charge(ledger, 0, prefill=200.0, now_s=10.0 + SHARE_MEMORY_S)
    assert shares(10.0 + SHARE_MEMORY_S) == pytest.approx([first / e + first, 0.0])


def test_what_comes_after_a_sequence_stalls_it(ledger: Ledger) -> None:
    """By the mean over those that run there, several of one request counted each; nothing once they have ended."""
    first = charge(ledger, 0, prefill=200.0)
    assert ledger.stalls_s((0, 1)) == [0.0, 0.0]
    charge(ledger, 1, prefill=100.0)
    later = ledger.charge(0, prefill_tokens=100.0, prefill_s=100.0 * PACE, kv_tokens=1.0, sequences=3, now_s=1.0)
    assert ledger.stalls_s((1, 0)) == pytest.approx([0.0, 100.0 * PACE / 4])
    ledger.release(later, 2.0)
    assert ledger.stalls_s((0, 1)) == pytest.approx([100.0 * PACE, 0.0])
    ledger.release(first, 3.0)
    assert ledger.stalls_s((0, 1)) == [0.0, 0.0]


def test_where_stalls_are_noticed(ledger: Ledger) -> None:
    """On engines whose sequences were stalled for more than a second, as long as those run."""
    first = charge(ledger, 0, prefill=9.0 / PACE)
    assert not ledger.stalled
    second = charge(ledger, 0, prefill=2.5 * NOTICED_STALL_S / PACE)
    assert ledger.stalled == {0}
    third = charge(ledger, 0, prefill=0.0)
    assert not ledger.stalled, "the mean over three"
    ledger.release(third, 1.0)
    assert ledger.stalled == {0}
    ledger.release(first, 1.0)
    assert not ledger.stalled
    ledger.release(second, 2.0)
    assert ledger.is_empty()


def test_prefill_that_is_done_again_does_not_stall_its_own_stream(ledger: Ledger) -> None:
    """It was taken to be done, and delays the others only."""
    first, again = charge(ledger, 0, prefill=0.0), Charge(0, 0, 100.0, 100.0 * PACE, 110.0, 1, in_prefill=False)
    ledger.put(again, 0.0)
    ledger.prefill_again(again, 1.0)
    assert ledger.stalls_s((0,)) == pytest.approx([100.0 * PACE / 2])
    ledger.release(first, 2.0)
    assert ledger.stalls_s((0,)) == pytest.approx([0.0])


def test_work_of_a_peer_that_was_on_its_way_is_noted(ledger: Ledger) -> None:
    """On what was charged shortly before it was known, and on nothing older or on other engines."""
    old, young, other = charge(ledger), charge(ledger, now_s=0.995), charge(ledger, 1, now_s=0.995)
    ledger.charge(0, prefill_tokens=70.0, prefill_s=0.7, kv_tokens=1, sequences=1, now_s=1.0, is_of_peer=True)
    charge(ledger, now_s=1.0)
    assert [one.unseen_tokens for one in (old, young, other)] == [0.0, 70.0, 0.0]


@pytest.mark.parametrize("queues", [True, False])
def test_a_stream_that_was_unknown_before_leaves_nothing_behind(ledger: Ledger, queues: bool) -> None:
    """As a peer states it that was missing; only one whose prompt another engine computed counts as handed over."""
    stream = Charge(0, 0, 100.0, 1.0, 110.0, 2, in_prefill=False, queues=queues)
    ledger.put(stream, 0.0)
    assert ledger.handed_over[0] == (0 if queues else 2)
    ledger.release(stream, 1.0)
    assert ledger.handed_over == [0] * SLOTS


def test_prefill_of_a_rank_stalls_those_that_step_with_it(ledger: Ledger) -> None:
    """As far as it lasts longer than theirs: 2 s beside nothing, then 1 s of 3 s beside these 2 s."""
    ledger.step_groups = dict.fromkeys((0, 1), (0, 1))
    stream = charge(ledger, 1, prefill=0.0)
    ledger.prefill_done(stream, 0.0)
    first = charge(ledger, 0, prefill=200.0)
    assert first.extends_s == pytest.approx(2.0)
    assert ledger.stalls_s([1])[0] == pytest.approx(1.0)  # The mean with the stream of the prompt itself, not stalled.
    assert ledger.stalled == {1}
    second = charge(ledger, 1, prefill=300.0)
    assert second.extends_s == pytest.approx(1.0)
    assert ledger.in_step(0, ledger.running) == 2
    assert charge(ledger, 2, prefill=300.0).extends_s == 0.0
