"""Why requests go another way: a closed list, as metrics and receipts show it."""

from collections.abc import Iterable
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.eligible import (
    MAX_FULLY_SCORED,
    SHORTEST_QUEUES,
    EligibleEngines,
    PairingFallback,
    engines_of,
    make_eligible,
    shortlist,
)
from routing.facts import PodFacts, PromptLengths
from routing.pods import Engine, Pod
from scorers.registry import routings
from tests.routing.engines import ask, place, router_of


def test_reasons_are_names_fit_for_labels() -> None:
    """Lower case and underscores, each once."""
    assert all(reason.value == reason.name.lower() for reason in PairingFallback)
    assert len({reason.value for reason in PairingFallback}) == len(PairingFallback)


GAPS = (1, 3, 0, 4)
"""Slots as they are after pods have come and gone."""


def roster(slots: Iterable[int]) -> EligibleEngines:
    """Engines that say what they hold in the even slots only, each ready since as many seconds as its slot."""
    members = [
        (Engine(slot, f"http://{slot}", kv_tokens=None if slot % 2 else 1000, block_tokens=16 << slot % 2), float(slot))
        for slot in slots
    ]
    return make_eligible(members, is_adapter=False)


def test_the_eligible_set_indexes_columns() -> None:
    """Slots, mask, places and what is picked out of a column agree, also where slots have gaps and no order."""
    gaps = roster(GAPS)
    assert gaps.slots == GAPS
    assert gaps.mask == 0b11011
    assert list(gaps.select("abcdefgh")) == ["b", "d", "a", "e"]
    assert [gaps.position_of[slot] for slot in gaps.slots] == [0, 1, 2, 3]
    assert sorted(gaps.positions(0b10001)) == [2, 3]
    assert gaps.ready_since_s == (1.0, 3.0, 0.0, 4.0)
    assert gaps.newest_since_s == 4.0
    assert gaps.kv_capacity == (inf, inf, 1000.0, 1000.0)
    assert gaps.min_kv_capacity == 1000.0
    assert gaps.block_tokens == 32


@pytest.mark.parametrize("slots", [(), (0,), (0, 1), (0, 1, 2, 3, 4), (2, 3), (3,), (1, 0)])
def test_an_eligible_set_of_any_size_picks(slots: tuple[int, ...]) -> None:
    """One engine and none are no special case to who reads a column, nor are slots in one run."""
    assert list(roster(slots).select(list(range(10)))) == list(slots)


@given(st.sets(st.sampled_from("abcde")))
def test_failed_pods_are_left_out(avoided: set[str]) -> None:
    """A roster without some pods is the roster of the others, all their engines gone."""
    members = [(Engine(2 * at + rank, name, rank), float(at)) for at, name in enumerate("abcde") for rank in (0, 1)]
    left = make_eligible(members, is_adapter=True).excluding(frozenset(avoided))
    others = make_eligible([each for each in members if each[0].pod not in avoided], is_adapter=True)
    assert (left.engines, left.slots, left.mask) == (others.engines, others.slots, others.mask)
    assert (left.ready_since_s, left.is_adapter) == (others.ready_since_s, True)
    assert left.mask.bit_count() == 2 * (5 - len(avoided))


def test_some_of_the_same_engines_stand_in_the_order_requested() -> None:
    """A short list indexes the same columns, and its bounds stay those of the whole."""
    gaps = roster(GAPS)
    short = gaps.narrowed_to((3, 0))
    assert [engine.pod for engine in short.engines] == ["http://4", "http://1"]
    assert (short.slots, short.mask, short.position_of) == ((4, 1), 0b10010, {4: 0, 1: 1})
    assert list(short.select("abcdefgh")) == ["e", "b"]
    assert (short.ready_since_s, short.kv_capacity) == ((4.0, 1.0), (1000.0, inf))
    assert (short.newest_since_s, short.block_tokens) == (gaps.newest_since_s, gaps.block_tokens)


def test_what_a_pod_was_put_up_for_goes_with_its_engines() -> None:
    """For which prompts, why it answers and who prefills: in a part of a roster as in the whole."""
    pods = [
        Pod(f"http://{each}", facts=PodFacts(prompts=each))
        for each in (PromptLengths.SHORT, PromptLengths.ANY, PromptLengths.LONG)
    ]
    complete = engines_of([(Engine(slot, pod.url), pod) for slot, pod in enumerate(pods)], "m")
    complete = replace(complete, has_prefillers=True, fallback=PairingFallback.NO_PREFILL_POD)
    assert complete.prompts == (PromptLengths.SHORT, PromptLengths.ANY, PromptLengths.LONG)
    for part in (complete.narrowed_to((0, 2)), complete.excluding(frozenset({"http://any"}))):
        assert part.prompts == (PromptLengths.SHORT, PromptLengths.LONG)
        assert (part.has_prefillers, part.fallback) == (True, PairingFallback.NO_PREFILL_POD)
    assert engines_of([(Engine(1, pods[1].url), pods[1])], "m").prompts == ()


def test_ranks_go_with_their_engines_where_they_differ() -> None:
    """Without a rank a pod has rank 0; where all have the same there is no column."""
    pods = [Pod(f"http://{each}", facts=PodFacts(spill_rank=each)) for each in (None, 1, 2)]
    complete = engines_of([(Engine(slot, pod.url), pod) for slot, pod in enumerate(pods)], "m")
    assert complete.spill_ranks == (0, 1, 2)
    for part in (complete.narrowed_to((0, 2)), complete.excluding(frozenset({"http://1"}))):
        assert part.spill_ranks == (0, 2)
    assert engines_of([(Engine(1, pods[1].url), pods[1])], "m").spill_ranks == ()


def test_a_model_is_an_adapter_where_any_pod_says_so() -> None:
    """The same name may be an adapter here and merged into its base there."""
    merged, adapter = Pod("http://a"), Pod("http://b", adapters=frozenset({"lora"}))
    members = [(Engine(slot, pod.url), pod) for slot, pod in enumerate((merged, adapter))]
    assert engines_of(members, "lora").is_adapter
    assert not engines_of(members[:1], "lora").is_adapter


MANY = 3 * MAX_FULLY_SCORED


def numbered_roster(count: int) -> EligibleEngines:
    return make_eligible(((Engine(slot, f"http://{slot}"), 0.0) for slot in range(count)), is_adapter=False)


def test_those_with_the_shortest_queues_are_looked_at() -> None:
    """In whatever order they stand, and not many more."""
    queue_rank = [float(place * 37 % MANY) for place in range(MANY)]
    chosen = shortlist(numbered_roster(MANY), [], queue_rank, None)
    assert sorted(queue_rank[place] for place in chosen) == [float(each) for each in range(SHORTEST_QUEUES)]


def test_whoever_holds_more_is_looked_at_however_busy() -> None:
    """A conversation's engine, the session's, and of a prefix that many hold those of them with the shortest queues."""
    queue_rank = [float(place) for place in range(MANY)]
    many = sum(1 << slot for slot in range(MANY - 2 * SHORTEST_QUEUES, MANY - 1))
    chosen = shortlist(numbered_roster(MANY), [(many, 100), (1 << (MANY - 1), 900)], queue_rank, MANY - 20)
    assert set(chosen) >= {MANY - 1, MANY - 20, *range(MANY - 2 * SHORTEST_QUEUES, MANY - SHORTEST_QUEUES)}
    assert len(chosen) <= 2 * SHORTEST_QUEUES + 2


def test_a_receipt_still_counts_all() -> None:
    """How many might have served it is not how many were scored."""
    assert place(router_of(MANY), ask()).candidate_count == MANY


def test_cold_prompts_spread_over_a_large_fleet() -> None:
    """Each idle engine gets one before any gets a second."""
    router = router_of(MANY)
    chosen = [
        place(router, ask(f"prompt {number} ".encode() * 500), now_s=1000.0).engine.slot for number in range(MANY)
    ]
    assert len(set(chosen)) == MANY


def test_the_next_turn_finds_its_engine_in_a_large_fleet() -> None:
    """Although many others have nothing queued."""
    router = router_of(MANY)
    talk = b"what was said " * 2_000
    first = place(router, ask(talk), now_s=1000.0)
    first.first_token(1001.0)
    for number in range(MANY):
        place(router, ask(f"prompt {number} ".encode() * 10), now_s=1001.0)
    assert place(router, ask(talk + b"and more"), now_s=1002.0).engine is first.engine


@pytest.mark.parametrize("routing", ["round-robin", "least-loaded"])
def test_a_routing_that_requests_other_things_sees_all(routing: str) -> None:
    """Turns are taken by all engines."""
    router = router_of(MANY, scorers=routings()[routing])
    chosen = [place(router, ask(), now_s=1000.0).engine.slot for _ in range(MANY)]
    assert len(set(chosen)) == MANY


def test_an_engine_that_is_late_is_not_taken_for_idle() -> None:
    """Its head should have been done long ago: until it is, engines without a queue come first."""
    router = router_of(MANY)
    late = {place(router, ask(f"{number} ".encode() * 900), now_s=1000.0).engine.slot for number in range(MANY // 2)}
    later = {
        place(router, ask(f"late {number} ".encode() * 900), now_s=2000.0).engine.slot for number in range(MANY // 2)
    }
    assert len(late) == len(later) == MANY // 2
    assert not late & later
