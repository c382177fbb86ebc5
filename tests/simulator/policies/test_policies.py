"""Each policy of others does what its published rule says, on scenes where the rules part."""

from random import Random
from typing import ClassVar

import pytest

from routing.candidates import Scorer
from simulator.policies.affinity import Affinity
from simulator.policies.board import Board
from simulator.policies.cache_aware import CacheAware
from simulator.policies.dynamo import DynamoCost, LMetric
from simulator.policies.exactly import Exactly
from simulator.policies.least_prefill import LeastPrefill
from simulator.policies.polyserve import FullestFeasible
from simulator.policies.registry import COMPARED, POLICIES, known_policies, scorers_of
from simulator.policies.seconds import GivenSeconds
from simulator.policies.sticky import Sticky, StickyBySlack
from simulator.policies.weighted import PrefixAndLoad, PrefixQueueKv, stretch
from simulator.profile import Profile
from tests.simulator.policies.scenes import requested, seen, winner

PROMPT = requested(range(10))


def busy(board: Board, slot: int, requests: int, *, tokens: float = 1000.0, warm: float = 0.0) -> None:
    for number in range(requests):
        board.place(f"busy-{slot}-{number}", slot, tokens, warm)


def test_least_prefill_is_independent_of_the_cache() -> None:
    """The shortest queue, though another engine holds it all."""
    assert winner(LeastPrefill().score(PROMPT, seen(PROMPT, warm=[1000, 0], ahead=[10, 5]))) == 1


def test_affinity_keeps_a_session_whatever_the_load() -> None:
    """New ones go where the fewest are."""
    board = Board()
    policy, turn = Affinity(board), requested([1, 2], session="s")
    busy(board, 1, 3)
    first = seen(turn, warm=[0, 0])
    assert winner(policy.score(turn, first)) == 0
    policy.chosen(turn, first, 0)
    busy(board, 0, 9)
    assert winner(policy.score(turn, first)) == 0
    assert winner(policy.score(requested([1, 2], session="t"), first)) == 1


def test_affinity_finds_sessions_by_what_is_not_common() -> None:
    """Prompts that share only a beginning that all have are different sessions; one that goes on is the same."""
    board = Board()
    policy = Affinity(board)
    for number in range(8):
        other = requested([0, 100 + number])
        policy.chosen(other, seen(other, warm=[0, 0]), number % 2)
    first = requested([0, 7, 8])
    policy.chosen(first, seen(first, warm=[0, 0]), 1)
    busy(board, 1, 5)
    assert winner(policy.score(requested([0, 7, 8, 9]), seen(first, warm=[0, 0]))) == 1
    assert winner(policy.score(requested([0, 5, 6]), seen(first, warm=[0, 0]))) == 0


def test_weights_of_three_to_one_let_a_third_of_a_hit_beat_all_load() -> None:
    """3 x 0.4 against 1."""
    board = Board()
    busy(board, 0, 50)
    policy = PrefixAndLoad(board)
    assert winner(policy.score(PROMPT, seen(PROMPT, warm=[400, 0]))) == 0
    assert winner(policy.score(PROMPT, seen(PROMPT, warm=[300, 0]))) == 1


def test_prefix_queue_and_kv_weigh_three_two_two() -> None:
    """A full hit does not outweigh the only queue; half of the KV more does the rest."""
    board = Board()
    policy = PrefixQueueKv(board)
    busy(board, 0, 1, tokens=100.0)
    assert winner(policy.score(PROMPT, seen(PROMPT, warm=[1000, 0]))) == 0
    busy(board, 0, 9, tokens=100_000.0)
    assert winner(policy.score(PROMPT, seen(PROMPT, warm=[1000, 0]))) == 1


def test_stretching_takes_the_least_for_one_and_the_most_for_zero() -> None:
    """However small the difference."""
    assert stretch([4, 6, 5]) == [1.0, 0.0, 0.5]
    assert stretch([4, 4]) == [1.0, 1.0]


def test_sticky_stays_until_the_gate() -> None:
    """18 s at 15,928 tokens/s of uncached tokens; then the load alone decides."""
    board = Board()
    policy, scene = Sticky(board), seen(PROMPT, warm=[800, 0])
    busy(board, 0, 1, tokens=286_000.0)
    assert winner(policy.score(PROMPT, scene)) == 0
    busy(board, 0, 1, tokens=290_000.0)
    assert winner(policy.score(PROMPT, scene)) == 1
    assert winner(policy.score(PROMPT, seen(PROMPT, warm=[790, 0]))) == 1


def test_sticky_by_slack_leaves_when_the_request_itself_would_be_late() -> None:
    """Two seconds to the first token, at learned rates."""
    policy = StickyBySlack(Board(), ttft_s=2.0)
    scene = seen(PROMPT, warm=[800, 0], ahead=[1700, 0])
    assert winner(policy.score(PROMPT, scene)) == 0
    busy(policy._board, 0, 1, tokens=2000.0)
    late = seen(PROMPT, warm=[800, 0], ahead=[2000, 0])
    assert winner(policy.score(PROMPT, late)) == 1


def test_dynamo_counts_a_block_in_use_as_a_block_to_prefill() -> None:
    """Ten warm blocks against eleven of others that decode: blocks of the same prompt count once."""
    board = Board()
    policy, scene = DynamoCost(board), seen(PROMPT, warm=[1000, 0])
    assert policy.score(PROMPT, scene) == [10.0, 20.0]
    board.place("twin", 0, 1000.0, 1000.0, PROMPT.prompt.blocks)
    assert policy.score(PROMPT, scene) == [10.0, 20.0]
    board.place("other", 0, 1100.0, 1100.0, tuple(range(50, 61)))
    assert policy.score(PROMPT, scene) == [21.0, 20.0]


def test_lmetric_multiplies() -> None:
    """Tokens to prefill by batch size: nothing to prefill costs nothing, however full."""
    board = Board()
    busy(board, 0, 3, tokens=100.0, warm=100.0)
    policy = LMetric(board)
    assert policy.score(PROMPT, seen(PROMPT, warm=[900, 500])) == [400.0, 500.0]
    assert policy.score(PROMPT, seen(PROMPT, warm=[1000, 0])) == [0.0, 1000.0]


def test_the_fullest_that_can_keep_the_objectives_is_chosen() -> None:
    """Not one that is too late, not one whose steps are too slow; the soonest where none can."""
    policy = FullestFeasible(ttft_s=2.0, tpot_s=0.025)
    scene = seen(PROMPT, warm=[0, 0, 0, 0], ahead=[0, 900, 1100, 0], running=[2, 9, 12, 15])
    assert winner(policy.score(PROMPT, scene)) == 1
    hopeless = seen(PROMPT, warm=[0, 0], ahead=[9000, 8000], running=[0, 5])
    assert winner(policy.score(PROMPT, hopeless)) == 1


def test_cache_aware_follows_a_match_of_a_third_until_load_is_uneven() -> None:
    """More than 64 requests and half as many again apart: the fewest win."""
    board = Board()
    policy, scene = CacheAware(board), seen(PROMPT, warm=[0, 0])
    policy.chosen(PROMPT, scene, 1)
    busy(board, 1, 64)
    turn = requested(range(13))
    assert winner(policy.score(turn, scene)) == 1
    assert winner(policy.score(requested([0, 1, 2, 50, 51, 52, 53, 54, 55, 56]), scene)) == 0
    busy(board, 1, 66)
    assert winner(policy.score(turn, scene)) == 0


def test_given_seconds_adds_queue_and_cold_tokens() -> None:
    """Over the speed that it was given."""
    board = Board()
    busy(board, 0, 1, tokens=500.0)
    scores = GivenSeconds(board, 1000.0).score(PROMPT, seen(PROMPT, warm=[800, 0]))
    assert scores == pytest.approx([0.7, 1.0])


class Flat:
    """Likes all the same."""

    name: ClassVar[str] = "flat"

    def score(self, request: object, candidates: object) -> list[float]:
        return [3.0, 3.0, 9.0]


def test_equals_are_drawn_or_the_first_and_the_board_is_reported() -> None:
    """The chosen one costs nothing, all others more than anything."""
    flat: Scorer = Flat()
    scene = seen(PROMPT, warm=[0, 0, 0])
    board = Board()
    drawn = {winner(Exactly(flat, board, Random(seed)).score(PROMPT, scene)) for seed in range(9)}
    assert drawn == {0, 1}
    assert {
        winner(Exactly(flat, board, Random(seed), first_of_equals=True).score(PROMPT, scene)) for seed in (1, 2)
    } == {0}
    assert board.requests[0] == 1


def test_every_name_makes_scorers() -> None:
    """The lab's and the gateway's own."""
    assert set(COMPARED) <= set(known_policies())
    for name in known_policies():
        assert scorers_of(name, Board(), Profile(), Random(0))
    with pytest.raises(KeyError):
        scorers_of("no such", Board(), Profile(), Random(0))
    assert "warm" not in POLICIES
