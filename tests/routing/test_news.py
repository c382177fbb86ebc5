"""The voice of a router: every word is said once, in order, and a statement holds what is open."""

from routing.affinity import key_of
from routing.learning import Usage
from routing.news import Ended, FirstToken, Placed, Settled, Stated, Voice
from tests.routing.engines import TALK, ask, place, router_of
from tests.routing.exchanges import talker


def test_a_request_is_told_from_its_place_to_its_end() -> None:
    """Placed, first token, settled with its answer, ended: in this order, each once, whatever is called twice."""
    one = talker(1, 2)
    request = ask(session="talk")
    placement = place(one.router, request, now_s=1.0)
    placement.first_token(1.5)
    placement.first_token(1.6)
    placement.settle(Usage(2000, 11, 0), 2.0, answer=b"x" * 300, response_id="resp")
    placement.release(2.0)
    placement.release(2.1)
    placed, first, settled, ended = one.voice.take()
    assert isinstance(placed, Placed)
    assert (placed.charge.engine, placed.model, placed.session) == (placement.engine.name, "m", key_of("talk"))
    assert placed.prompt is request.prompt
    assert placed.charge.prefill_tokens > 1000
    assert isinstance(first, FirstToken)
    assert (first.number, first.took_s) == (placed.charge.number, 0.5)
    assert isinstance(settled, Settled)
    assert (settled.prompt_tokens, settled.completion_tokens, settled.decode_s) == (2000, 11, 0.5)
    assert settled.response == key_of("resp")
    grown = request.prompt.extended(b"x" * 300)
    assert (request.prompt.blocks + settled.grown_blocks, settled.grown_size) == (grown.blocks, grown.size)
    assert ended == Ended(placed.charge.number)
    assert one.voice.take() == []


def test_a_statement_holds_what_is_open() -> None:
    """Who has ended is not in it; who has begun to answer is not in prefill."""
    one = talker(1, 1)
    gone, begun, waiting = (place(one.router, ask(TALK[start:])) for start in (0, 50, 90))
    gone.release(1.0)
    begun.first_token(1.0)
    one.voice.take()
    one.voice.state()
    (stated,) = one.voice.take()
    assert isinstance(stated, Stated)
    assert [charge.in_prefill for charge in stated.open] == [False, True]
    assert stated.open[1].kv_tokens == one.router.ledger.kv_tokens[0] - stated.open[0].kv_tokens
    assert one.voice.open_count == 2
    waiting.release(2.0)


def test_a_voice_wakes_whoever_takes_once() -> None:
    """The first word wakes, those behind it do not, and after a taking the next one wakes again."""
    woken: list[int] = []
    voice = Voice(lambda: woken.append(1))
    voice.state()
    voice.state()
    assert len(woken) == 1
    voice.take()
    voice.state()
    assert len(woken) == 2


def test_without_a_voice_nothing_is_kept() -> None:
    """A router by itself says nothing and pays nothing."""
    router = router_of(1)
    place(router, ask()).release(1.0)
    assert router.voice is None


def test_what_continues_a_response_does_not_tell_of_warmth() -> None:
    """Its engine counts the whole conversation, of which only the newest part was seen."""
    one = talker(1, 1)
    placement = place(one.router, ask(continues="resp"))
    placement.first_token(0.1)
    placement.settle(Usage(9000, 5, 8000), 1.0, answer=b"hello")
    settled = one.voice.take()[-1]
    assert isinstance(settled, Settled)
    assert (settled.prompt_tokens, settled.grown_blocks, settled.completion_tokens) == (0, (), 5)
    placement.release(1.0)
