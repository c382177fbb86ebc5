"""The engine that all gateways pick for a prompt while they cannot exchange updates."""

from collections import Counter

import pytest

from routing.blocks import Prompt
from routing.decision.router import OUTAGE_MEMORY_S, Router
from routing.pods import Engine
from routing.rendezvous import rendezvous_position, unknown_beginning
from routing.request import Request
from tests.routing.engines import TALK, add_pod, ask, place, serve
from tests.routing.exchanges import pair, tell_all
from tests.routing.prompts import ENDS, prompt_of

ENGINES = [Engine(slot, f"http://{slot}") for slot in range(8)]


@pytest.mark.parametrize(
    ("walked", "known"),
    [
        ([], 0),
        ([(0b1110, ENDS[1])], 2),
        ([(0b1000, ENDS[0]), (0b0111, ENDS[2])], 3),
        ([(0b1110, ENDS[1]), (0b0001, ENDS[2])], None),
        ([(0b0011, ENDS[1])], None),
        ([(0b1111, ENDS[3])], None),
    ],
)
def test_a_beginning_is_unknown_behind_what_most_engines_hold(walked: list[tuple[int, int]], known: int | None) -> None:
    """Where a few hold more than the others, or most hold all of it, cached tokens decide."""
    prompt = prompt_of("abcd")
    assert unknown_beginning(prompt, walked, 4) == (None if known is None else prompt.blocks[known])
    assert unknown_beginning(Prompt((), (), 5), [], 4) is None


def test_all_gateways_pick_the_same_engine_in_whatever_order_they_know_them() -> None:
    """By name; another engine that comes or goes moves only what it takes or had."""
    picks = {block: ENGINES[rendezvous_position(block, ENGINES)] for block in range(400)}
    other_order = ENGINES[::-1]
    assert all(other_order[rendezvous_position(block, other_order)] is engine for block, engine in picks.items())
    fewer = ENGINES[1:]
    for block, engine in picks.items():
        if engine is not ENGINES[0]:
            assert fewer[rendezvous_position(block, fewer)] is engine
    counts = Counter(engine.slot for engine in picks.values())
    assert min(counts.values()) > 25


def routers(missing_s: float | None) -> list[Router]:
    """Two routers over the same pods, found in another order."""
    made = [Router(pair()[0].router.scorers) for _ in range(2)]
    for router, numbers in zip(made, (range(4), reversed(range(4))), strict=True):
        for number in numbers:
            add_pod(router, f"http://{number}")
        router.peers_missing_s = missing_s
    return made


def requests() -> list[Request]:
    return [ask(b"%d " % number * 100 + TALK) for number in range(12)]


def common_engines(here: Router, there: Router) -> int:
    """Of twelve new prompts, how many two gateways place on the same engine."""
    names = [[serve(router, each).engine.name for each in requests()] for router in (here, there)]
    return sum(one == other for one, other in zip(*names, strict=True))


def test_gateways_without_updates_place_a_prompt_on_the_same_engine() -> None:
    """Only while updates are missing: otherwise uncached prompts spread."""
    assert common_engines(*routers(0.0)) == 12
    assert common_engines(*routers(None)) < 12


def test_it_lasts_for_some_time_after_updates_came_back() -> None:
    """Conversations that began meanwhile are known to one gateway only."""
    router = routers(None)[0]
    router.peers_found_s = 100.0
    for now_s, counts in ((100.0 + OUTAGE_MEMORY_S - 1, True), (100.0 + OUTAGE_MEMORY_S + 1, False)):
        assert ("rendezvous" in router._look(ask(), frozenset(), now_s).scored.names) == counts


def test_what_a_gateway_knows_to_be_cached_decides() -> None:
    """The engine that holds the prompt is worth more than the one that others would pick."""
    here, there = pair()
    first = serve(there.router, ask(), draw=0.99)
    tell_all([here, there], 1.0)
    here.router.peers_missing_s = 1.0
    second = place(here.router, ask(TALK + b"And then?"), now_s=1.0)
    assert second.engine.name == first.engine.name
    assert second.predicted.cached_tokens > 0
