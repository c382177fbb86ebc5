"""A line and its relay without sockets: bytes of a pod in, bytes to a client out, however they are split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.attempt import AttemptStatus
from gateway.pipeline.transport import PinnedRequest
from gateway.relay.resumption import delivered_by
from routing.reading import response_bytes as answer_bytes_of
from routing.request import Api, Usage
from tests.gateway.http.scene import Scene, staged
from tests.gateway.http.wire import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    USAGE,
    answer_bytes,
    chat_answer,
    chat_event,
    chat_stream,
    chunk,
    chunked,
    error_answer,
    event,
    usage_event,
)
from tests.gateway.relay.test_sse import CUTS, WORDS, split
from tests.gateway.resume.thinker import Thinker


@given(words=st.lists(WORDS, min_size=1, max_size=5), cuts=CUTS, withholds=st.booleans(), joined=st.booleans())
def test_any_split_of_a_streams_bytes_gives_the_client_the_same(
    words: list[str], cuts: list[int], withholds: bool, joined: bool
) -> None:
    """Head, chunk sizes and events may be cut anywhere, and share chunks or not: the client's body is the same."""
    events = chat_stream(*words)
    raw = STREAM_HEAD + chunked([b"".join(events)] if joined else events)
    scene = staged(lambda: Scene(withholds_usage=withholds).feed(split(raw, cuts)))
    assert scene.received.is_whole
    assert scene.received.body == b"".join(e for e in events if not (withholds and e == usage_event()))
    assert scene.leg.end is AttemptStatus.OK
    assert (scene.leg.usage, scene.leg.finish_reason) == (Usage(42, 3, 32), "stop")
    assert scene.owner.given_back == scene.answered == len(scene.placement.first_tokens) == 1


@given(content=st.text(), cuts=CUTS, is_chunked=st.booleans())
def test_any_split_of_a_unary_answer_gives_the_client_the_same(content: str, cuts: list[int], is_chunked: bool) -> None:
    """A body by its length or in chunks, split anywhere: byte for byte, and its facts are read."""
    raw = answer_bytes(chat_answer(content))
    body = raw.partition(b"\r\n\r\n")[2]
    if is_chunked:
        raw = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        raw += chunked([body[:10], body[10:]])
    scene = staged(lambda: Scene().feed(split(raw, cuts)))
    assert scene.received.is_whole
    assert scene.received.body == body
    assert ("content-length" in scene.received.headers) is not is_chunked
    assert (scene.leg.end, scene.leg.usage, scene.leg.finish_reason) == (
        AttemptStatus.OK,
        Usage(42, 3, 32),
        "stop",
    )
    assert scene.placement.first_tokens == []  # Nobody can tell when the first token was there.


@given(words=st.lists(WORDS, min_size=2, max_size=5), cuts=CUTS, kept=st.integers(0, 10_000))
def test_a_stream_cut_anywhere_is_lost_and_stays_well_framed(words: list[str], cuts: list[int], kept: int) -> None:
    """Before the first token nothing was sent; after it whole events only, and then an error event can follow."""
    events = chat_stream(*words)
    raw = STREAM_HEAD + chunked(events)
    raw = raw[: kept % raw.rindex(b"[DONE]")]  # With its last event a stream is complete, framed to its end or not.
    scene = staged(lambda: Scene().feed(split(raw, cuts)).hang_up())
    assert scene.leg.end is AttemptStatus.CONNECTION_RESET
    assert scene.leg.started is bool(scene.client.written)
    assert not scene.answered
    reported = b"".join(events)
    assert reported.startswith(scene.received.body)
    assert scene.received.body == b"" or scene.received.body.endswith(b"\n\n")
    if scene.leg.started:
        scene.client.written += chunk(b"data: more\n\n") + LAST_CHUNK
        assert scene.received.is_whole


@given(cuts=CUTS, after=st.integers(2, 24), joined=st.booleans())
def test_a_message_that_is_given_up_is_lost_with_its_block_open(cuts: list[int], after: int, joined: bool) -> None:
    """However its bytes come, what is kept as told is what was: another pod can go on in that block."""
    events = Thinker("pod").given_up(after)
    raw = STREAM_HEAD + chunked([b"".join(events)] if joined else events)
    scene = staged(lambda: Scene(Api.MESSAGES).feed(split(raw, cuts)))
    assert scene.leg.end is AttemptStatus.CONNECTION_RESET
    stated = delivered_by(scene.relay)
    assert stated is not None
    assert (stated.raw, stated.event_count) == (scene.received.body, scene.received.body.count(b"\n\n"))
    assert b"content_block_stop" not in scene.received.body[:-2].split(b"\n\n")[-1]


@given(cuts=CUTS)
def test_a_message_of_several_blocks_comes_complete(cuts: list[int]) -> None:
    """The end of a block leaves the short way, and what follows comes back to it."""
    events = Thinker("pod").answer(Api.MESSAGES)
    scene = staged(lambda: Scene(Api.MESSAGES).feed(split(STREAM_HEAD + chunked(events), cuts)))
    one_a_read = staged(lambda: Scene(Api.MESSAGES).feed([STREAM_HEAD, *map(chunk, events), LAST_CHUNK]))
    assert scene.received.is_whole
    assert scene.received.body == one_a_read.received.body == b"".join(events)
    assert scene.leg.answer == answer_bytes_of(Api.MESSAGES, b"".join(events), stream=True)


def test_a_body_without_length_ends_with_its_connection() -> None:
    """HTTP/1.0 style answers pass too; their line is not used again."""

    def play() -> Scene:
        scene = Scene().feed([b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n", b'{"a"', b": 1}"])
        return scene.hang_up()

    scene = staged(play)
    assert scene.received.body == b'{"a": 1}'
    assert scene.leg.end is AttemptStatus.OK
    assert scene.owner.given_back == 0


def test_an_http_1_0_client_gets_a_stream_until_close() -> None:
    """It knows no chunks: the events come bare, and the connection's end is theirs."""
    scene = staged(lambda: Scene(version="1.0").feed([STREAM_HEAD + chunked(chat_stream("Hi"))]))
    head, _, body = scene.client.written.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert b"chunked" not in head
    assert body == chat_event("Hi", "stop") + DONE
    assert not scene.reply.keep_alive


def test_a_stream_is_one_in_whatever_case_its_type_is_written() -> None:
    """Media types have no case: its events go on as they come, and usage that only we asked for does not."""
    head = STREAM_HEAD.replace(b"text/event-stream", b"Text/Event-Stream")
    scene = staged(lambda: Scene().feed([head, chunked(chat_stream("Hi"))]))
    assert scene.received.body == chat_event("Hi", "stop") + DONE
    assert scene.leg.usage == Usage(42, 3, 32)


def test_no_content_has_no_body_and_no_framing_of_one() -> None:
    """About a stored response: a last chunk behind it would be read as the beginning of the next response."""

    def play() -> Scene:
        scene = Scene()
        pinned = PinnedRequest(scene.placement.request, scene.placement.engine)
        scene.relay.placement = pinned
        return scene.feed([b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n"])

    scene = staged(play)
    head, end, behind = scene.client.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 204 ")
    assert (end, behind) == (b"\r\n\r\n", b"")
    assert b"transfer-encoding" not in head
    assert b"content-length" not in head
    assert (scene.leg.end, scene.answered) == (AttemptStatus.OK, 1)


def test_a_header_of_the_gateway_may_name_a_model_of_any_script() -> None:
    """The tenant's policy names it; a head that cannot be written would count against each pod that answers."""

    def play() -> Scene:
        scene = Scene()
        scene.reply.headers = (("x-hearth-downgraded-from", "模型"),)
        return scene.feed([answer_bytes(chat_answer())])

    scene = staged(play)
    assert (scene.received.status, scene.leg.end) == (200, AttemptStatus.OK)
    assert scene.received.headers["x-hearth-downgraded-from"] == "??"


@pytest.mark.parametrize("status", [100, 103])
def test_interim_answers_are_passed_over(status: int) -> None:
    """A pod that says 100 or 103 first has not answered yet."""
    raw = b"HTTP/1.1 %d Wait\r\nlink: x\r\n\r\n" % status + answer_bytes(chat_answer())
    scene = staged(lambda: Scene().feed([raw]))
    assert scene.received.status == 200
    assert scene.leg.end is AttemptStatus.OK


@pytest.mark.parametrize(
    "raw",
    [
        b"HELLO\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nlocation: http://elsewhere/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 0-2/9\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 300 + b"content-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"b" * 70_000,
    ],
)
def test_what_cannot_be_passed_on_is_malformed(raw: bytes) -> None:
    """Nonsense, absurd sizes and answers of a kind we did not ask for: another pod may do better."""
    scene = staged(lambda: Scene().feed([raw]))
    assert (scene.leg.end, scene.leg.started, scene.client.written) == (AttemptStatus.INVALID_RESPONSE, False, b"")
    assert scene.socket.is_aborted
    assert scene.owner.given_back == 0


@pytest.mark.parametrize("surplus", [b"x", answer_bytes({"second": 1}), STREAM_HEAD + chunk(b"data: x\n\n")])
def test_a_second_answer_reaches_no_one(surplus: bytes) -> None:
    """What follows the answer on the same read is no part of it, and its line is not used again."""
    scene = staged(lambda: Scene().feed([answer_bytes(chat_answer()) + surplus]))
    assert scene.received.body == answer_bytes(chat_answer()).partition(b"\r\n\r\n")[2]
    assert scene.client.written.count(b"HTTP/1.1") == 1
    assert scene.leg.end is AttemptStatus.OK
    assert scene.owner.given_back == 0


def test_bytes_that_were_not_requested_end_the_line() -> None:
    """An idle line that speaks is out of step."""

    def play() -> Scene:
        scene = Scene().feed([answer_bytes(chat_answer())])
        scene.line.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
        return scene

    scene = staged(play)
    assert scene.socket.is_aborted
    assert scene.client.written.count(b"HTTP/1.1") == 1


BUSY = {
    "error": {"message": "The engine is currently busy.", "type": "Service Unavailable", "param": None, "code": 503}
}
DEAD = {"error": {"message": "EngineCore died.", "type": "InternalServerError", "param": None, "code": 500}}
FULL_MESSAGES = {
    "type": "error",
    "error": {
        "type": "internal_error",
        "message": "2 errors: The engine is currently busy and cannot accept new requests",
    },
}


@pytest.mark.parametrize(
    ("api", "first", "end"),
    [
        (Api.CHAT, event(BUSY), AttemptStatus.UPSTREAM_BUSY),
        (Api.CHAT, event(DEAD), AttemptStatus.UPSTREAM_5XX),
        (Api.COMPLETIONS, b": ping\n\n" + event(DEAD), AttemptStatus.UPSTREAM_5XX),
        (Api.MESSAGES, event(FULL_MESSAGES, "error"), AttemptStatus.UPSTREAM_BUSY),
        (
            Api.RESPONSES,
            event({"type": "response.created"}, "response.created") + event(DEAD),
            AttemptStatus.UPSTREAM_5XX,
        ),
    ],
)
@given(cuts=CUTS)
def test_an_error_as_first_event_is_kept_from_the_client(
    api: Api, first: bytes, end: AttemptStatus, cuts: list[int]
) -> None:
    """A pod that says 200 at once and then that it is full or dead: another pod may answer still."""
    raw = STREAM_HEAD + chunked([first, DONE])
    scene = staged(lambda: Scene(api).feed(split(raw, cuts)))
    assert (scene.leg.end, scene.leg.started, scene.client.written) == (end, False, b"")
    assert not scene.placement.first_tokens


@given(cuts=CUTS)
def test_an_error_inside_a_stream_is_not_passed_on_as_it_is(cuts: list[int]) -> None:
    """What was generated stays; the pod's own words do not, for the spine will say it."""
    raw = STREAM_HEAD + chunked([chat_event("Hi"), event(DEAD), DONE])
    scene = staged(lambda: Scene().feed(split(raw, cuts)))
    assert (scene.leg.end, scene.leg.started, scene.leg.detail) == (
        AttemptStatus.UPSTREAM_5XX,
        True,
        "EngineCore died.",
    )
    assert scene.received.body == chat_event("Hi")
    assert not scene.received.is_whole


def test_a_clients_fault_reported_in_a_stream_is_sent_to_the_client() -> None:
    """A 400 as first event becomes the answer's status; a later one becomes an event of ours."""
    reported = event({"error": {"message": "No.", "type": "BadRequestError", "param": "body.n", "code": 400}})
    first = staged(lambda: Scene().feed([STREAM_HEAD + chunked([reported, DONE])]))
    later = staged(lambda: Scene().feed([STREAM_HEAD + chunked([chat_event("Hi"), reported, DONE])]))
    assert (first.received.status, first.leg.end, first.leg.status) == (400, AttemptStatus.OK, 400)
    assert b'"param":"n","code":"invalid_value"' in first.received.body
    assert first.answered == later.answered == 1
    assert later.received.is_whole
    assert later.received.body.startswith(chat_event("Hi") + b'data: {"error":{"message":"No."')


@pytest.mark.parametrize(
    ("status", "end"),
    [
        (429, AttemptStatus.UPSTREAM_BUSY),
        (503, AttemptStatus.UPSTREAM_BUSY),
        (500, AttemptStatus.UPSTREAM_5XX),
        (502, AttemptStatus.UPSTREAM_5XX),
        (401, AttemptStatus.UPSTREAM_5XX),
        (403, AttemptStatus.UPSTREAM_5XX),
    ],
)
def test_a_pods_own_trouble_is_kept_from_the_client(status: int, end: AttemptStatus) -> None:
    """Busy, broken, or not taking our key: nothing of it is the client's business yet."""
    scene = staged(lambda: Scene().feed([error_answer("Oh.", status)]))
    assert (scene.leg.end, scene.leg.status, scene.client.written) == (end, status, b"")
    assert scene.owner.given_back == 1


@pytest.mark.parametrize("status", [400, 404, 409, 413, 422, 501])
@given(cuts=CUTS)
def test_a_clients_fault_is_passed_on_in_its_dialect(status: int, cuts: list[int]) -> None:
    """Status and message are the pod's, the code is a string; what no pod can do is told as asked wrongly."""
    scene = staged(lambda: Scene().feed(split(error_answer("Wrong.", status, param="body.x"), cuts)))
    assert scene.received.status == (400 if status == 501 else status)
    assert b'"message":"Wrong."' in scene.received.body
    assert b'"param":"x","code":"' in scene.received.body
    assert (scene.leg.end, scene.answered) == (AttemptStatus.OK, 1)


def test_a_huge_error_body_is_not_kept() -> None:
    """Of an error as long as a book, the beginning is enough."""
    body = b'{"error":{"message":"' + b"x" * 1_000_000 + b'"}}'
    scene = staged(lambda: Scene().feed([answer_bytes(body, 400)]))
    assert scene.received.status == 400
    assert len(scene.received.body) < 10_000


def test_a_long_answer_is_not_kept_but_its_usage_is_read() -> None:
    """Beyond the bound only the end is kept: no text to learn from, but what it took."""
    events = [*[chat_event("word")] * 3000, *chat_stream("end")]
    scene = staged(lambda: Scene(kept=10_000).feed([STREAM_HEAD, *map(chunk, events), LAST_CHUNK]))
    assert scene.leg.usage == Usage(42, 3, 32)
    assert scene.leg.finish_reason == "stop"
    assert scene.leg.answer == b""
    complete = staged(lambda: Scene().feed([STREAM_HEAD, *map(chunk, events), LAST_CHUNK]))
    assert b"wordword" in complete.leg.answer


def test_usage_of_an_unkept_unary_answer_is_read_from_its_end() -> None:
    """A long body by its length: the same."""
    raw = answer_bytes({"choices": [{"text": "x" * 300_000}], "usage": USAGE, "metrics": None})
    scene = staged(lambda: Scene(kept=1000).feed(split(raw, list(range(0, len(raw), 30_000)))))
    assert scene.leg.usage == Usage(42, 3, 32)
    assert scene.received.is_whole


@pytest.mark.parametrize("usage", ['"\\ud800"', '{"a":"\\udc00"}', "9" * 5000, "[" * 5000, "NaN"])
def test_usage_that_is_no_usage_is_left_out(usage: str) -> None:
    """Half a surrogate pair, a number as long as a page, nesting without end: the answer goes on, uncounted."""
    raw = answer_bytes(b'{"choices":[{"text":"' + b"x" * 300_000 + b'"}],"usage":' + usage.encode() + b"}")
    scene = staged(lambda: Scene(kept=1000).feed([raw]))
    assert (scene.leg.end, scene.leg.usage) == (AttemptStatus.OK, None)
    assert scene.received.is_whole


def test_embeddings_report_their_prefill_by_their_answer() -> None:
    """An answer without decoding is there when the prefill is done."""
    scene = staged(lambda: Scene(Api.EMBEDDINGS).feed([answer_bytes({"data": [], "usage": USAGE})]))
    assert len(scene.placement.first_tokens) == 1


def test_a_response_id_is_reported_for_responses_only() -> None:
    """What later turns name is remembered; a chat's id is nobody's business."""
    completed = {"response": {"id": "resp_1", "status": "completed", "output": []}, "type": "response.completed"}
    raw = STREAM_HEAD + chunked([event(completed, "response.completed")])
    assert staged(lambda: Scene(Api.RESPONSES).feed([raw])).leg.response_id == "resp_1"
    assert staged(lambda: Scene().feed([STREAM_HEAD + chunked(chat_stream("Hi"))])).leg.response_id is None
