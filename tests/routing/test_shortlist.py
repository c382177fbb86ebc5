"""Who is worth scoring in a large fleet."""

import pytest

from routing.pods import Engine
from routing.roster import Roster, make_roster
from routing.shortlist import LEAST_QUEUED, SCORED_WHOLE, shortlist
from scorers.registry import routings
from tests.routing.engines import ask, place, router_of

MANY = 3 * SCORED_WHOLE


def roster_of(count: int) -> Roster:
    return make_roster(((Engine(slot, f"http://{slot}"), 0.0) for slot in range(count)), is_adapter=False)


def test_those_with_the_shortest_queues_are_looked_at() -> None:
    """In whatever order they stand, and not many more."""
    queue_rank = [float(place * 37 % MANY) for place in range(MANY)]
    chosen = shortlist(roster_of(MANY), [], queue_rank, None)
    assert sorted(queue_rank[place] for place in chosen) == [float(each) for each in range(LEAST_QUEUED)]


def test_whoever_holds_more_is_looked_at_however_busy() -> None:
    """A conversation's engine, the session's, and of a prefix that many hold those of them with the shortest queues."""
    queue_rank = [float(place) for place in range(MANY)]
    many = sum(1 << slot for slot in range(MANY - 2 * LEAST_QUEUED, MANY - 1))
    chosen = shortlist(roster_of(MANY), [(many, 100), (1 << (MANY - 1), 900)], queue_rank, MANY - 20)
    assert set(chosen) >= {MANY - 1, MANY - 20, *range(MANY - 2 * LEAST_QUEUED, MANY - LEAST_QUEUED)}
    assert len(chosen) <= 2 * LEAST_QUEUED + 2


def test_a_receipt_still_counts_all() -> None:
    """How many might have served it is not how many were scored."""
    assert place(router_of(MANY), ask()).candidates_in_all == MANY


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
def test_a_routing_that_asks_for_other_things_sees_all(routing: str) -> None:
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
