"""Who comes late learns from the past what is warm and how fast, and takes nothing of it for open."""

import pytest

from routing.bygone import Bygone
from routing.learning import Usage
from tests.routing.engines import TALK, ask, place, serve
from tests.routing.exchanges import loads, talker


def test_the_past_makes_warm_and_charges_nothing() -> None:
    """Prompts, sessions and paces of old news are known; what was open in them is nowhere."""
    old, joiner = talker(1, 3), talker(2, 3)
    first = serve(old.router, ask(session="talk"), draw=0.5)
    begun = place(old.router, ask(b"Call me Ishmael. " * 300), now_s=9.0)
    begun.first_token(10.0)
    bygone = Bygone(joiner.router)
    bygone.hear(*old.batch())
    bygone.close()
    assert joiner.router.ledger.is_empty()
    assert loads(joiner.router) == {}
    second = place(joiner.router, ask(TALK + b"And then?", session="talk"))
    assert second.engine.name == first.engine.name
    assert second.predicted.warm_tokens > 0.9 * second.predicted.prompt_tokens
    assert joiner.router.costs.seconds_per_token == pytest.approx(old.router.costs.seconds_per_token)
    assert joiner.router.index.size_of(begun.engine.slot) >= begun.request.prompt.covered
    assert bygone.heard > 3


def test_what_never_began_in_the_past_is_not_warm() -> None:
    """A prompt that was placed and not seen to be computed is not believed to be there."""
    old, joiner = talker(1, 1), talker(2, 1)
    place(old.router, ask())
    bygone = Bygone(joiner.router)
    bygone.hear(*old.batch())
    assert joiner.router.index.size_of(0) > 0
    bygone.close()
    assert joiner.router.index.size_of(0) == 0


def test_a_slot_taken_later_is_no_trouble() -> None:
    """Pods may come while the past is heard."""
    old, joiner = talker(1, 3), talker(2, 1)
    bygone = Bygone(joiner.router)
    placement = place(old.router, ask())
    placement.settle(Usage(2000, 5, 0), 1.0)
    placement.release(1.0)
    bygone.hear(*old.batch())
    joiner.router.remove_pod("http://0")
    for number in range(1, 5):
        place(old.router, ask(b"%d" % number * 2000))
    bygone.hear(*old.batch())
    bygone.close()
    assert joiner.router.ledger.is_empty()
