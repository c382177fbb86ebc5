"""Targets that pods, other gateways and Redis reach: answers, streams, metrics, KV events, frames and batches."""

from __future__ import annotations

import contextlib

import msgspec

from gateway.discovery.file import parse_pods
from gateway.fleet.scrape import read_page
from gateway.kv_index.event_feed import EventBatchDecoder, UndecodableEventsError, sequence_number
from gateway.relay.pod_errors import error_body, read_error, read_stream_error
from gateway.relay.recorder import ResponseRecorder, facts_of_stream
from gateway.relay.sse import EventScanner
from gateway.replica_sync.ipc_messages import BrokenFramesError, FrameDecoder, decode_message
from gateway.replica_sync.updates import UndecodableBatchError as UnreadableBatchError
from gateway.replica_sync.updates import batch_head, decode_batch, encode_batch
from routing.reading import read_complete, read_response_facts
from routing.reading.responses import response_bytes
from routing.request import GENERATING, Api
from tenancy.document import InvalidValue
from tests.fuzz.target import Target, cut, split

SPEAKING = tuple(sorted(GENERATING))
APIS = tuple(Api)


def feed_stream(raw: bytes) -> None:
    """A pod's stream: the same bytes go on however it comes in pieces, and what it told can be read."""
    steer, raw = split(raw)
    api, withholds = SPEAKING[steer % 4], bool(steer & 4)
    complete, error = passed(api, [raw], withholds=withholds)
    pieces, error_in_pieces = passed(api, cut(raw, steer >> 3), withholds=withholds)
    assert error == error_in_pieces
    # Of many empty lines between events, one more or less may go on before an event that does not: they mean nothing.
    assert complete.replace(b"\n", b"") == pieces.replace(b"\n", b"")


def passed(api: Api, pieces: list[bytes], *, withholds: bool) -> tuple[bytes, object]:
    kept = ResponseRecorder(1 << 18)
    scanner = EventScanner(api, kept, withholds_usage=withholds)
    out = b""
    for piece in pieces:
        out += scanner.take(piece)
        if scanner.error is not None:
            return out, scanner.error
    out += scanner.finish()
    facts_of_stream(api, kept)
    assert scanner.is_complete in (True, False)
    return out, None


def feed_answer(raw: bytes) -> None:
    """A pod's answer, whole or streamed, and its error."""
    steer, raw = split(raw)
    api = APIS[steer % len(APIS)]
    facts, _ = read_complete(api, raw)
    assert facts.usage is None or facts.usage.prompt_tokens >= 0
    read_response_facts(api, raw)
    response_bytes(api, raw, stream=True)
    error = read_stream_error(raw) or read_error(500, raw)
    msgspec.json.decode(error_body(error, anthropic=api.is_anthropic, request_id="r"))


def feed_page(raw: bytes) -> None:
    """A pod's metrics."""
    for engine in read_page(raw).engines.values():
        assert engine.kv_usage is None or 0.0 <= engine.kv_usage <= 1.0


def feed_kv_events(raw: bytes) -> None:
    """A batch of an engine's KV events."""
    sequence_number(raw[:8])
    reader = EventBatchDecoder()
    with contextlib.suppress(UndecodableEventsError):
        assert isinstance(reader.decode(raw), list)


def feed_frames(raw: bytes) -> None:
    """What a worker and its index process say to each other."""
    steer, raw = split(raw)
    frames = FrameDecoder(max_bytes=1 << 16)
    with contextlib.suppress(BrokenFramesError):
        for piece in cut(raw, steer):
            for frame in frames.feed(piece):
                decode_message(frame)


def feed_batch(raw: bytes) -> None:
    """A batch of words as Redis gives it: read or refused whole; what was read can be written again."""
    with contextlib.suppress(UnreadableBatchError):
        batch_head(raw)
        read = decode_batch(raw)
        again = decode_batch(encode_batch(read.replica_id, read.number, read.updates))
        assert len(again.updates) == len(read.updates)


def feed_pods(raw: bytes) -> None:
    """A file that lists pods."""
    with contextlib.suppress(InvalidValue, UnicodeDecodeError):
        assert all(found.url for found in parse_pods(raw.decode()))


TARGETS = (
    Target(
        "stream", feed_stream, (b"data: ", b"\n\n", b"\r\n", b'"usage":', b'"error":', b"[DONE]", b"event: ", b"{}")
    ),
    Target("answer", feed_answer, (b'"usage":{', b'"choices":[', b'"prompt_tokens":', b'"error":', b"-1", b"null")),
    Target("page", feed_page, (b"\nvllm:", b"num_requests_running", b'{engine="0"} ', b"NaN", b"1e400", b"+Inf")),
    Target("kv_events", feed_kv_events, (b"BlockStored", b"BlockRemoved", b"\x93", b"\xc0", b"\xdc\xff\xff")),
    Target("frames", feed_frames, (b"\x00\x00\x00\x05", b"\x91", b"\xc0")),
    Target("batch", feed_batch, (b"\x97", b"\xc4\x08", b"\xcf", b"\xc0")),
    Target("pods", feed_pods, (b"pods:", b"- ", b"url: ", b"http://", b"&a ", b"*a", b"\n")),
)
