"""The scanner alone: bytes of a stream in, bytes for the client out."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.recorder import ResponseRecorder
from gateway.relay.sse import MAX_HELD_BYTES, EventScanner
from routing.request import Api
from tests.gateway.http.wire import DONE, chat_event, chat_stream, event, usage_event
from tests.gateway.resume.thinker import Thinker


def a_scanner(api: Api = Api.CHAT, *, withholds_usage: bool = True, kept_bytes: int = 1 << 18) -> EventScanner:
    return EventScanner(api, ResponseRecorder(kept_bytes), withholds_usage=withholds_usage)


def scan(scanner: EventScanner, pieces: list[bytes]) -> bytes:
    return b"".join(scanner.take(piece) for piece in pieces) + scanner.finish()


def split(raw: bytes, cuts: list[int]) -> list[bytes]:
    """`raw` cut at some places, without empty pieces."""
    places = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    return [raw[start:end] for start, end in pairwise(places)]


TRICKY = ['"usage"', '"error"', "\n\n", "\\n\\n", "data: [DONE]", "a", "ü", "\r"]
WORDS = st.lists(st.sampled_from(TRICKY), max_size=3).map("".join)
CUTS = st.lists(st.integers(0, 1 << 16), max_size=12)


@given(words=st.lists(WORDS, min_size=1, max_size=6), cuts=CUTS, withholds=st.booleans(), crlf=st.booleans())
def test_any_split_of_a_stream_comes_out_the_same(
    words: list[str], cuts: list[int], withholds: bool, crlf: bool
) -> None:
    """However the stream is cut, the client gets every byte but the usage event that only we asked for."""
    events = chat_stream(*words)
    raw = b"".join(events)
    expected = b"".join(e for e in events if not (withholds and e == usage_event()))
    if crlf:
        raw, expected = raw.replace(b"\n", b"\r\n"), expected.replace(b"\n", b"\r\n")
    scanner = a_scanner(withholds_usage=withholds)
    assert scan(scanner, split(raw, cuts)) == expected
    assert scanner.is_complete
    assert scanner.has_first_token
    assert scanner.error is None


@given(st.binary(max_size=200), CUTS)
def test_any_bytes_come_out_as_they_are(raw: bytes, cuts: list[int]) -> None:
    """What is no stream of events is not ours to change."""
    scanner = a_scanner()
    out = scan(scanner, split(raw, cuts))
    assert out == raw or scanner.error is not None


def test_complete_events_are_passed_without_a_copy() -> None:
    """Nearly every read holds whole events that do not concern us: the very same object goes on."""
    scanner = a_scanner()
    scanner.take(chat_event("Hi"))
    payload = chat_event(" there") + chat_event(".")
    assert scanner.take(payload) is payload


def test_usage_in_every_chunk_is_the_clients() -> None:
    """Continuous usage stands beside a choice; only the event without choices was added for us."""
    scanner = a_scanner()
    usage = {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1}
    stream = [chat_event("Hi", usage=usage), chat_event(".", "stop", usage=usage), usage_event(), DONE]
    assert scan(scanner, stream) == b"".join([stream[0], stream[1], DONE])


def test_comments_and_prelude_wait_for_the_first_token() -> None:
    """Before an engine has computed anything, nothing goes on: another pod may still have to answer."""
    scanner = a_scanner(Api.RESPONSES)
    ping = b": ping\n\n"
    created = event({"type": "response.created", "response": {"id": "resp_1"}}, "response.created")
    queued = event({"type": "response.in_progress", "response": {"id": "resp_1"}}, "response.in_progress")
    delta = event({"type": "response.output_item.added"}, "response.output_item.added")
    assert [scanner.take(piece) for piece in (ping, created, queued)] == [b"", b"", b""]
    assert scanner.take(delta) == ping + created + queued + delta
    assert scanner.has_first_token
    assert scanner.response_id == "resp_1"


def test_a_prelude_that_grows_too_long_is_let_go() -> None:
    """What is held back is bounded, whatever a pod sends."""
    scanner = a_scanner()
    ping = b": " + b"p" * 1000 + b"\n\n"
    passed = [scanner.take(ping) for _ in range(100)]
    assert sum(map(len, passed)) == 100 * len(ping)
    assert passed[0] == b""
    assert passed[-1] == ping


@pytest.mark.parametrize("size", [MAX_HELD_BYTES - 10, MAX_HELD_BYTES + 10, 3 * MAX_HELD_BYTES])
@pytest.mark.parametrize("step", [1000, 65_536])
def test_an_event_of_any_length_passes(size: int, step: int) -> None:
    """An event longer than what is held goes on as it comes; what follows it is looked at again."""
    scanner = a_scanner()
    stream = [chat_event("a"), chat_event("b" * size), usage_event(), DONE]
    raw = b"".join(stream)
    pieces = [raw[start : start + step] for start in range(0, len(raw), step)]
    most_held = 0
    out = b""
    fed = 0
    for piece in pieces:
        out += scanner.take(piece)
        fed += len(piece)
        most_held = max(most_held, fed - len(out))
    out += scanner.finish()
    assert out == b"".join([stream[0], stream[1], DONE])
    assert most_held <= MAX_HELD_BYTES + step


@pytest.mark.parametrize("piece", [b"x", b"data: ", b": \n\n"])
def test_what_is_held_grows_in_place(piece: bytes) -> None:
    """A pod may send 4 MB of one event, or of comments, byte by byte: each byte must not copy those before it."""
    scanner = EventScanner(Api.CHAT, ResponseRecorder(0), withholds_usage=False, held_bytes=1 << 22)
    held, prelude, sent = scanner._held, scanner._prelude, 0
    for _ in range(1000):
        assert scanner.take(piece) == b""
        sent += len(piece)
    assert len(held) >= sent or len(prelude) >= sent
    assert held is scanner._held or prelude is scanner._prelude


ERROR = (
    b'data: {"error": {"message": "EngineCore died.", "type": "InternalServerError", "param": null, "code": 500}}\n\n'
)


@given(cuts=CUTS)
def test_an_error_event_is_detected_and_ends_the_stream(cuts: list[int]) -> None:
    """What came before it goes on; it itself and what is behind it do not."""
    scanner = a_scanner()
    out = b""
    for piece in split(chat_event("Hi") + ERROR + DONE, cuts):
        out += scanner.take(piece)
        if scanner.error is not None:
            break
    assert out == chat_event("Hi")
    assert scanner.error is not None
    assert (scanner.error.status, scanner.error.message) == (500, "EngineCore died.")


def test_an_error_as_the_first_event_lets_nothing_go() -> None:
    """A full or dying pod says 200 and then this: the client must not have seen anything."""
    scanner = a_scanner()
    assert scanner.take(ERROR + DONE) == b""
    assert scanner.error is not None


@pytest.mark.parametrize(
    ("api", "last"),
    [
        (Api.CHAT, DONE),
        (Api.COMPLETIONS, DONE),
        (Api.RESPONSES, event({"response": {}, "type": "response.completed"}, "response.completed")),
        (Api.MESSAGES, event({"type": "message_stop"}, "message_stop")),
    ],
)
def test_a_stream_without_its_last_bytes_was_cut(api: Api, last: bytes) -> None:
    """A connection that ends tidily does not make an answer complete."""
    reported = event({"type": "x", "choices": [{"delta": {"content": "say [DONE] or message_stop"}}]})
    cut, complete = a_scanner(api), a_scanner(api)
    scan(cut, [reported])
    scan(complete, [reported, last])
    assert not cut.is_complete
    assert complete.is_complete


@given(cuts=CUTS)
def test_the_end_of_a_block_goes_on_with_what_follows(cuts: list[int]) -> None:
    """However a message is split, all of it comes out; never a block's end as the last that has gone on."""
    raw = b"".join(Thinker("pod").answer(Api.MESSAGES))
    scanner, out = a_scanner(Api.MESSAGES), b""
    for piece in split(raw, cuts):
        out += scanner.take(piece)
        last = out[:-2].split(b"\n\n")[-1]
        assert b"content_block_stop" not in last
        assert b"signature_delta" not in last
    assert out == raw
    assert scanner.has_sent_all


@given(cuts=CUTS, after=st.integers(2, 24))
def test_the_end_of_a_block_that_is_none_goes_to_no_one(cuts: list[int], after: int) -> None:
    """An engine that gives a message up closes its block first, and says behind that that it was not whole."""
    pod = Thinker("pod")
    scanner, out = a_scanner(Api.MESSAGES), b""
    for piece in split(b"".join(pod.given_up(after)), cuts):
        out += scanner.take(piece) if scanner.error is None else b""
    reported = pod.answer(Api.MESSAGES)[:after]
    while b"content_block_stop" in reported[-1] or b"signature_delta" in reported[-1]:
        reported.pop()
    assert out == b"".join(reported)
    assert scanner.error is not None


def test_a_message_flows_on_behind_the_end_of_a_block() -> None:
    """Nothing is held any more when what follows has come."""
    scanner, events = a_scanner(Api.MESSAGES), Thinker("pod").answer(Api.MESSAGES)
    flows = [(scanner.take(each), scanner.is_flowing)[1] for each in events]
    closes = [b"content_block_stop" in each or b"signature_delta" in each for each in events]
    assert flows == [not each for each in closes]
    assert scanner.concerns(events[-3])
    assert not a_scanner().concerns(events[-3])


def test_ends_of_blocks_without_end_are_not_held() -> None:
    """What is held back is bounded, whatever a pod sends; in order, it all goes on."""
    scanner, stop = a_scanner(Api.MESSAGES), event({"type": "content_block_stop", "index": 0})
    scanner.take(event({"type": "message_start"}))
    fed = [stop] * (2 * MAX_HELD_BYTES // len(stop))
    out = b"".join(map(scanner.take, fed))
    assert len(out) >= MAX_HELD_BYTES
    assert out + scanner.finish() == b"".join(fed)
