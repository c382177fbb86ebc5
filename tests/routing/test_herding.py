"""Nobody runs where all run: siblings, bursts, system prompts, silent engines, slow ones, the very first request."""

from collections import Counter
from collections.abc import Iterable

import pytest

from routing.decision.placement import Placement
from routing.request import Usage
from tests.routing.engines import ask, place, router_of

SYSTEM = b"You are a helpful assistant of a large company, and this is what you know. " * 300
"""About 5,600 tokens: half a second of prefill."""


def prompt(name: str, characters: int = 20_000) -> bytes:
    """A text of that length that shares nothing with another's."""
    return (f"{name} says: ".encode() * (characters // 4))[:characters]


def pods_of(placements: Iterable[Placement]) -> Counter[str]:
    return Counter(placement.engine.pod for placement in placements)


def test_siblings_join_the_prefill_of_the_first() -> None:
    """Eight requests on one long document, all at once: it is computed once or twice, not eight times."""
    router, document = router_of(4, kv_tokens=1_000_000), prompt("document", 200_000)
    placed = [place(router, ask(document + f"question {number}".encode() * 9)) for number in range(8)]
    computing = [each for each in placed if each.predicted.cached_tokens < 1_000]
    assert len(computing) <= 2
    assert len(pods_of(placed)) <= 2


def test_a_burst_of_strangers_spreads() -> None:
    """In one moment, nothing seen of any of them: every engine gets as many."""
    router = router_of(4)
    assert set(pods_of(place(router, ask(prompt(f"{number}"))) for number in range(16)).values()) == {4}


def test_a_system_prompt_that_all_share_gathers_no_request() -> None:
    """Short questions behind one long beginning, as agents at a desk ask them: most engines compute it, and no one gets
    twice its share.
    """
    router = router_of(4, kv_tokens=20_000)
    placed = []
    for number in range(200):
        now_s = number * 0.05
        placed.append(place(router, ask(SYSTEM + prompt(f"{number}", 800)), now_s=now_s))
        placed[-1].first_token(now_s + 0.01 + placed[-1].predicted.ttft_s)
        if number >= 40:
            old = placed[number - 40]
            old.settle(Usage(5_800, 200, int(old.predicted.cached_tokens)), now_s)
            old.release(now_s)
    shares = pods_of(placed)
    assert len(shares) >= 3
    assert max(shares.values()) < 1.6 * 200 / 4


def test_what_engines_have_not_shown_is_not_taken_for_done() -> None:
    """No first token for minutes: what was sent still counts, and new prompts go on spreading."""
    router = router_of(4)
    shares = pods_of(place(router, ask(prompt(f"{number}")), now_s=number * 10.0) for number in range(40))
    assert set(shares.values()) == {10}


@pytest.mark.parametrize("times_slower", [3, 8])
def test_a_slow_engine_gets_what_it_can_do(times_slower: int) -> None:
    """One of four is of an older kind: once it was seen it gets less than half of the others' work, but some."""
    router, busy_until_s, placed = router_of(4), [0.0] * 4, []
    for number in range(400):
        now_s = number * 0.12
        placement = place(router, ask(prompt(f"{number}")), now_s=now_s)
        slot = placement.engine.slot
        takes_s = 0.4 * (times_slower if slot == 0 else 1)
        busy_until_s[slot] = max(busy_until_s[slot], now_s) + takes_s
        placed.append((busy_until_s[slot], placement))
        for when_s, each in placed:
            if when_s <= now_s and each.first_token_s is None:
                each.first_token(when_s)
                each.release(when_s)
    late = pods_of(placement for _, placement in placed[200:])
    others = [late[f"http://{slot}"] for slot in (1, 2, 3)]
    assert late["http://0"] < 0.5 * min(others)
    assert max(others) < 1.3 * min(others)


def test_the_very_first_request_is_placed_with_sense() -> None:
    """Nothing was ever seen: its first token is foreseen within what a GPU does, and it leaves the others idle."""
    router = router_of(3)
    first = place(router, ask(prompt("first")))
    assert 0.05 < first.predicted.ttft_s < 5
    assert place(router, ask(prompt("second"))).engine is not first.engine
