"""Targets that pods, other gateways and Redis reach: answers, streams, metrics, KV events, frames and batches."""

from __future__ import annotations

import contextlib

import msgspec

from gateway.discovery.file import read_pods
from gateway.fleet.scrape import read_page
from gateway.kv_index.event_feed import Reader, UnreadableError, sequence_of
from gateway.relay.pod_errors import error_body, read_error, read_stream_error
from gateway.relay.recorder import Kept, facts_of_stream
from gateway.relay.sse import Scanner
from gateway.replica_sync.ipc_messages import BrokenFramesError, Frames, read_message
from gateway.replica_sync.updates import UnreadableError as UnreadableBatchError
from gateway.replica_sync.updates import head_of, read_batch, write_batch
from routing.reading import read_facts, read_whole
from routing.reading.responses import answer_bytes
from routing.request import GENERATING, Api
from tenancy.document import Wrong
from tests.fuzz.target import Target, cut, split

SPEAKING = tuple(sorted(GENERATING))
APIS = tuple(Api)


def feed_stream(raw: bytes) -> None:
    """A pod's stream: the same bytes go on however it comes in pieces, and what it told can be read."""
    steer, raw = split(raw)
    api, withholds = SPEAKING[steer % 4], bool(steer & 4)
    whole, error = passed(api, [raw], withholds=withholds)
    pieces, error_in_pieces = passed(api, cut(raw, steer >> 3), withholds=withholds)
    assert error == error_in_pieces
    # Of many empty lines between events, one more or less may go on before an event that does not: they mean nothing.
    assert whole.replace(b"\n", b"") == pieces.replace(b"\n", b"")


def passed(api: Api, pieces: list[bytes], *, withholds: bool) -> tuple[bytes, object]:
    kept = Kept(1 << 18)
    scanner = Scanner(api, kept, withholds_usage=withholds)
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
    facts, _ = read_whole(api, raw)
    assert facts.usage is None or facts.usage.prompt_tokens >= 0
    read_facts(api, raw)
    answer_bytes(api, raw, stream=True)
    error = read_stream_error(raw) or read_error(500, raw)
    msgspec.json.decode(error_body(error, anthropic=api.is_anthropic, request_id="r"))


def feed_page(raw: bytes) -> None:
    """A pod's metrics."""
    for engine in read_page(raw).engines.values():
        assert engine.kv_usage is None or 0.0 <= engine.kv_usage <= 1.0


def feed_kv_events(raw: bytes) -> None:
    """A batch of an engine's KV events."""
    sequence_of(raw[:8])
    reader = Reader()
    with contextlib.suppress(UnreadableError):
        assert isinstance(reader.read(raw), list)


def feed_frames(raw: bytes) -> None:
    """What a worker and its warmth process say to each other."""
    steer, raw = split(raw)
    frames = Frames(max_bytes=1 << 16)
    with contextlib.suppress(BrokenFramesError):
        for piece in cut(raw, steer):
            for frame in frames.feed(piece):
                read_message(frame)


def feed_batch(raw: bytes) -> None:
    """A batch of words as Redis gives it: read or refused whole; what was read can be written again."""
    with contextlib.suppress(UnreadableBatchError):
        head_of(raw)
        read = read_batch(raw)
        again = read_batch(write_batch(read.origin, read.number, read.news))
        assert len(again.news) == len(read.news)


def feed_pods(raw: bytes) -> None:
    """A file that lists pods."""
    with contextlib.suppress(Wrong, UnicodeDecodeError):
        assert all(found.url for found in read_pods(raw.decode()))


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
