"""A stream whose chunks come one a read, as nearly all do: passed on as they are, and read as if they had not been."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.attempt import AttemptStatus
from gateway.relay.fast_path import ONE_CHUNK_BYTES, SIZE_OF_READ, PassthroughStream
from gateway.relay.recorder import ResponseRecorder
from gateway.relay.sse import needs_inspection
from routing.reading import response_bytes
from routing.request import Api, Usage
from tests.gateway.http.scene import Scene, staged
from tests.gateway.http.wire import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    chat_event,
    chat_stream,
    chunk,
    chunked,
    event,
    usage_event,
)
from tests.gateway.relay.test_relay import DEAD
from tests.gateway.relay.test_sse import CUTS, WORDS, split


def one_a_read(*events: bytes) -> list[bytes]:
    """As a pod sends them."""
    return [STREAM_HEAD, *map(chunk, events), LAST_CHUNK]


def passed(events: list[bytes]) -> list[bytes]:
    """What of a stream its client is to see."""
    return [each for each in events if each != usage_event()]


@given(words=st.lists(WORDS, min_size=1, max_size=8), together=st.sets(st.integers(0, 10)), cuts=CUTS)
def test_chunks_that_come_complete_are_read_like_any_others(
    words: list[str], together: set[int], cuts: list[int]
) -> None:
    """Some reads are one chunk, some are several, some end inside: the client and the receipt cannot tell."""
    events = chat_stream(*words)
    reads: list[bytes] = []
    for number, read in enumerate(one_a_read(*events)):
        if number in together and reads:
            reads[-1] += read
        else:
            reads.append(read)
    reads[2:3] = split(reads[2], cuts) if len(reads) > 2 else []
    scene = staged(lambda: Scene().feed(reads))
    assert scene.received.is_whole
    assert scene.received.body == b"".join(passed(events))
    assert (scene.leg.usage, scene.leg.finish_reason) == (Usage(42, 3, 32), "stop")
    assert scene.leg.answer == response_bytes(Api.CHAT, b"".join(events), stream=True)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_chunk_a_read_reaches_the_client_as_it_is(version: str) -> None:
    """Framed for who knows chunks, bare for who does not, the usage withheld from both."""
    events = chat_stream("Hi", " there", ", you", ".")
    scene = staged(lambda: Scene(version=version).feed(one_a_read(*events)))
    body = scene.client.written.partition(b"\r\n\r\n")[2]
    assert body == (b"".join(passed(events)) if version == "1.0" else chunked(passed(events)))


@pytest.mark.parametrize("size", [b"0%x", b"%X", b"%x;note=1"])
def test_an_unusual_frame_is_left_to_the_parser(size: bytes) -> None:
    """Leading zeros, large letters, extensions: read by llhttp, and framed anew for the client."""
    events = chat_stream("Hi", "o", "oo", "ooo")
    odd = [size % len(each) + b"\r\n" + each + b"\r\n" for each in events]
    scene = staged(lambda: Scene().feed([STREAM_HEAD, *odd, LAST_CHUNK]))
    assert scene.client.written.partition(b"\r\n\r\n")[2] == chunked(passed(events))


def test_the_size_of_a_read_is_that_of_one_chunk() -> None:
    """The table has the one size line that fills a read exactly, and what no chunk begins with where none does."""
    for payload in range(1, ONE_CHUNK_BYTES - 10):
        read = chunk(b"x" * payload)
        assert read.startswith(SIZE_OF_READ[len(read)])
        assert not chunk(b"x" * payload)[:-1].startswith(SIZE_OF_READ[len(read) - 1])


def test_a_chunk_that_holds_less_than_it_says_is_not_passed_on() -> None:
    """Its rest may come yet: nothing goes on that leaves the client inside of a chunk."""
    scene = staged(lambda: Scene().feed([STREAM_HEAD, *map(chunk, chat_stream("Hi", "a", "b")[:3])]))
    before = scene.client.written
    complete = chat_event("cut") + chat_event("here")
    staged(lambda: scene.feed([chunk(complete)[: len(chunk(complete)) // 2]]))
    assert scene.client.written == before


def test_what_looks_like_a_chunk_inside_of_one_is_payload() -> None:
    """Also where it fills a read: the parser knows that the chunk around it has not ended."""
    outer = chat_event("Hi") + chunk(chat_event("no")) + b"\n\n"
    reads = [STREAM_HEAD, chunk(chat_event("Hi")), chunk(outer)]
    at = reads[2].index(chunk(chat_event("no")))
    reads[2:] = [reads[2][:at], chunk(chat_event("no")), reads[2][at + len(chunk(chat_event("no"))) :]]
    scene = staged(lambda: Scene().feed([*reads, chunk(DONE), LAST_CHUNK]))
    assert scene.received.body == chat_event("Hi") + outer + DONE


def test_half_a_size_before_a_read_belongs_to_it() -> None:
    """A read may look like a chunk whose size began in the read before: then it is only a part of one."""
    inner = chunk(chat_event("no"))
    size, _, payload = inner.partition(b"\r\n")
    rest = b": more".ljust(int(b"1" + size, 16) - len(payload)) + b"\r\n"
    reads = [STREAM_HEAD, chunk(chat_event("Hi")), chunk(chat_event("Ho")) + b"1", inner, rest]
    scene = staged(lambda: Scene().feed([*reads, chunk(b"\n\n" + DONE), LAST_CHUNK]))
    assert scene.received.body == chat_event("Hi") + chat_event("Ho") + payload + rest[:-2] + b"\n\n" + DONE


def test_a_chunk_without_its_line_end_is_no_http() -> None:
    """Its size is right, its end is not."""
    wrong = chunk(chat_event("no"))[:-2] + b"\n\n"
    scene = staged(lambda: Scene().feed([STREAM_HEAD, *map(chunk, [chat_event("Hi"), chat_event("Ho")]), wrong]))
    assert scene.leg.end is AttemptStatus.INVALID_RESPONSE


def test_an_error_in_a_read_of_its_own_is_noticed() -> None:
    """However smoothly the stream has flowed before."""
    scene = staged(lambda: Scene().feed(one_a_read(chat_event("Hi"), chat_event("!"), event(DEAD), DONE)))
    assert scene.leg.end is AttemptStatus.UPSTREAM_5XX
    assert scene.received.body == chat_event("Hi") + chat_event("!")


@dataclass
class FakeLine:
    """Whose connection it is."""

    left: bytes = b""
    reported: list[str] = field(default_factory=list)

    def resume_parsing(self, left: bytes) -> None:
        self.left = left

    def eof_received(self) -> None:
        self.reported.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.reported.append("lost")


class Passing:
    """A flow, what it writes, and what it leaves to its line."""

    def __init__(self, most_bytes: int) -> None:
        self.line, self.kept = FakeLine(), ResponseRecorder(most_bytes)
        self.written: list[bytes] = []
        self.reported: list[int] = []
        self.may_pass = 1 << 20
        """Events, before it wants to be told again."""
        self.flow = PassthroughStream(
            self.line, self.kept, self.written.append, self._tell, needs_inspection, self._tell(0)
        )

    def _tell(self, events: int) -> int:
        self.reported.append(events)
        return self.may_pass

    def pass_on(self, read: bytes) -> bytes:
        """What is left of a read."""
        self.line.left = b""
        self.flow.data_received(read)
        return self.line.left


def a_flow(most_bytes: int = 1 << 18) -> tuple[Passing, ResponseRecorder, list[bytes]]:
    passing = Passing(most_bytes)
    return passing, passing.kept, passing.written


def feed(flow: Passing, *events: bytes) -> None:
    for each in events:
        assert flow.pass_on(chunk(each)) == b""


def test_the_end_of_a_connection_is_the_lines() -> None:
    """Whoever has the connection when it ends."""
    flow, _, _ = a_flow()
    flow.flow.eof_received()
    flow.flow.connection_lost(None)
    assert flow.line.reported == ["eof", "lost"]


def test_counts_are_reported_when_requested() -> None:
    """One by one or several at once; what was not told yet is told when it is asked for, and nothing twice."""
    flow, _, _ = a_flow()
    flow.may_pass = 3
    flow.flow.report_count()
    events = [chat_event(f" {n}") for n in range(8)]
    feed(flow, *events[:2])
    assert sum(flow.reported) == 0
    feed(flow, *events[2:4], b"".join(events[4:6]))
    assert flow.reported[2:] == [3, 3]
    feed(flow, events[6])
    flow.flow.report_count()
    flow.flow.report_count()
    assert sum(flow.reported) == 7


def test_nothing_is_written_behind_the_end_that_whoever_counts_has_set() -> None:
    """What stands in the same read is nobody's."""
    flow, _, written = a_flow()
    flow.may_pass = 2
    flow.flow.report_count()
    flow.may_pass = 0
    read = b"".join(chunk(chat_event(f" {n}")) for n in range(5))
    assert flow.pass_on(read) == b""
    assert b"".join(written) == b"".join(chunk(chat_event(f" {n}")) for n in range(2))


def test_of_events_that_are_alike_only_the_text_is_kept() -> None:
    """A run of them is told as one event, which says the same."""
    flow, kept, written = a_flow()
    events = [chat_event("Hi"), *[chat_event(f" {n}") for n in range(100)], chat_event("", "stop"), DONE]
    feed(flow, *events)
    assert written == [chunk(each) for each in events]
    reported = kept.joined()
    assert len(reported) < 10 * len(events[0])
    assert response_bytes(Api.CHAT, reported, stream=True) == response_bytes(Api.CHAT, b"".join(events), stream=True)


def a_thought(text: str) -> bytes:
    return event({"id": "chatcmpl-x", "choices": [{"index": 0, "delta": {"reasoning": text}, "finish_reason": None}]})


def a_block(text: str) -> bytes:
    stated = {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": text}}
    return b"event: content_block_delta\n" + event(stated)


@pytest.mark.parametrize("made", [a_thought, a_block])
def test_so_it_is_of_thoughts(made: Callable[[str], bytes]) -> None:
    """In any API whose events are not numbered: models think for longer than they answer."""
    flow, kept, written = a_flow()
    feed(flow, *[made(f" {n}") for n in range(100)])
    assert len(written) == 100
    assert kept.joined() == made(" 0") + made("".join(f" {n}" for n in range(1, 100)))


@given(st.lists(st.sampled_from(['"', "\\", "\\n", "a", "ü", "\u2028", '"usage"', "\n\n"]), min_size=1, max_size=30))
def test_whatever_the_text_is_it_is_kept_as_it_was(words: list[str]) -> None:
    """Quotes and backslashes too, wherever they stand."""
    flow, kept, _ = a_flow()
    events = [chat_event(word) for word in words]
    for each in events:
        if flow.pass_on(chunk(each)):
            kept.add(each)
    kept.add(DONE)
    assert response_bytes(Api.CHAT, kept.joined(), stream=True) == response_bytes(
        Api.CHAT, b"".join([*events, DONE]), stream=True
    )


def test_what_is_kept_is_bounded() -> None:
    """A stream may say as much as it likes; what is kept of it then is its end, and not taken for the whole."""
    flow, kept, written = a_flow(10_000)
    feed(flow, *[chat_event("word " * 40)] * 5_000)
    assert len(written) == 5_000
    assert not kept.is_whole
    assert len(kept.joined()) <= 256 << 10


def test_streams_that_differ_in_more_than_text_are_kept_as_they_are() -> None:
    """Numbered events are all unlike; after some of them nobody looks for what they have in common."""
    flow, kept, _ = a_flow()
    events = [event({"sequence_number": n, "type": "x", "delta": f"{n}", "n": n}) for n in range(50)]
    feed(flow, *events)
    assert kept.joined() == b"".join(events)


@pytest.mark.parametrize(
    "chunk_", [chunk(b"data: {}"), chunk(b'data: {"usage":1}\n\n'), chunk(b'data: {"error":1}\n\n')]
)
def test_what_has_to_be_looked_at_is_not_passed_on(chunk_: bytes) -> None:
    """Half an event, usage, an error: nothing is written or kept."""
    flow, kept, written = a_flow()
    feed(flow, chat_event("Hi"), chat_event("Ho"))
    before = kept.joined()
    assert flow.pass_on(chunk(chat_event("Hu")) + chunk_) == chunk_
    assert len(written) == 3
    assert chunk_ not in kept.joined()
    assert before != kept.joined()


def test_an_event_that_says_more_is_kept_by_itself() -> None:
    """Though it begins and ends like the others: a quote between the two may end the text."""
    flow, kept, _ = a_flow()
    plain = [chat_event("Hi"), chat_event("Ho")]
    more = plain[0].replace(b'"Hi"', b'"Hi","more":"Ha"')
    feed(flow, *plain, more, *plain)
    assert more in kept.joined()


def test_several_chunks_of_a_read_go_on_one_by_one() -> None:
    """As far as they are whole; the rest is left."""
    flow, kept, written = a_flow()
    events = [chat_event(f" {n}") for n in range(40)]
    read = b"".join(map(chunk, events))
    assert flow.pass_on(read + b"a4\r\nda") == b"a4\r\nda"
    assert b"".join(written) == read
    kept.add(DONE)
    assert response_bytes(Api.CHAT, kept.joined(), stream=True) == response_bytes(
        Api.CHAT, b"".join([*events, DONE]), stream=True
    )


@pytest.mark.parametrize(
    "left", [b"\r\n", b"zz\r\n" + bytes(9000), b"1000\r\n" + bytes(9000), b"\n", b"4", b"0\r\n\r\n"]
)
def test_what_is_no_chunk_of_ours_is_left(left: bytes) -> None:
    """Nonsense, a large chunk, the last chunk, half a size."""
    flow, kept, written = a_flow()
    assert flow.pass_on(left) == left
    assert not written
    assert kept.joined() == b""
