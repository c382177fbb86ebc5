"""Anything may come: mutated requests in any pieces give well-formed answers, blame no pod, and leave nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import uvloop
from httptools import HttpResponseParser
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.http.rig import CHAT_PATH, a_chat, a_rig, request_bytes
from tests.gateway.http.scripted import until
from tests.gateway.http.wire import STREAM_HEAD, answer_bytes, chat_answer, chat_stream, chunk, chunked
from tests.gateway.relay.test_sse import split

CHUNKED = request_bytes(CHAT_PATH, method="POST", content_type="application/json", transfer_encoding="chunked")
SEEDS = [
    request_bytes("/health"),
    request_bytes("/v1/models", authorization="Bearer x", x_request_id="1"),
    request_bytes(CHAT_PATH, a_chat()),
    request_bytes(CHAT_PATH, a_chat(stream=True), expect="100-continue"),
    request_bytes(CHAT_PATH, a_chat(), connection="Upgrade", upgrade="h2c"),
    request_bytes("/v1/messages", a_chat(stream=True, max_tokens=1), connection="close"),
    CHUNKED + chunk(request_bytes("/", a_chat()).partition(b"\r\n\r\n")[2]) + b"0\r\n\r\n",
    request_bytes("/health").replace(b"1.1", b"1.0"),
]

INSERTED = st.sampled_from(
    [
        *(b"\r\n", b"\n", b"\r", b"\r\n\r\n", b" ", b"\t", b":", b"\x00", b"\xff", b"0\r\n\r\n", b"{", b"[" * 2000),
        *(b"content-length: 0\r\n", b"content-length: 99999999\r\n", b"transfer-encoding: chunked\r\n", b"host: b\r\n"),
        *(
            b"connection: close\r\n",
            b"expect: x\r\n",
            b"x: " + b"y" * 9000 + b"\r\n",
            b"HTTP/1.1",
            b"POST / HTTP/1.1\r\n",
        ),
    ]
)


@dataclass(frozen=True)
class Mutation:
    """At a place, some bytes taken out and others put in."""

    place: int
    taken: int
    put: bytes

    def __call__(self, raw: bytes) -> bytes:
        place = self.place % (len(raw) + 1)
        return raw[:place] + self.put + raw[place + self.taken :]


MUTATIONS = st.lists(
    st.builds(
        Mutation, st.integers(0, 1 << 16), st.sampled_from([0, 0, 1, 2, 10, 1000]), INSERTED | st.binary(max_size=4)
    ),
    max_size=4,
)


@dataclass
class Answers:
    """What the front wrote, as a strict client reads it."""

    statuses: list[int] = field(default_factory=list)
    parser: HttpResponseParser | None = None

    def read(self, raw: bytes) -> list[int]:
        self.parser = HttpResponseParser(self)
        if raw:
            self.parser.feed_data(raw)
        return self.statuses

    def on_headers_complete(self) -> None:
        assert self.parser is not None
        self.statuses.append(self.parser.get_status_code())


async def throw(raw: bytes, cuts: list[int], *, leaves: bool) -> None:
    async with a_rig() as rig:
        rig.pod.plays([answer_bytes(chat_answer())], [STREAM_HEAD + chunked(chat_stream("Hi", "."))])
        client = await rig.client()
        written = b""
        # Who sends on after what ends a connection may find it reset, and the answer with it.
        with suppress(ConnectionError, RuntimeError):
            for piece in split(raw, cuts):
                client.writer.write(piece)
                await asyncio.sleep(0)
            if leaves:
                client.leave()
                return
            await until(lambda: not rig.front.open_requests)
            client.writer.write_eof()
            written = await client.reader.read()
        statuses = Answers().read(written)
        assert all(status in {100, 200} or 400 <= status < 500 for status in statuses), statuses


@given(
    seeds=st.lists(st.sampled_from(SEEDS), min_size=1, max_size=4),
    mutations=MUTATIONS,
    cuts=st.lists(st.integers(0, 1 << 16), max_size=5),
    leaves=st.booleans(),
)
def test_mutated_requests_do_no_harm(
    seeds: list[bytes], mutations: list[Mutation], cuts: list[int], leaves: bool
) -> None:
    """Each answer is well-formed HTTP with 2xx or 4xx; afterwards no charge, task, connection or body is left."""
    raw = b"".join(seeds)
    for mutate in mutations:
        raw = mutate(raw)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(throw(raw, cuts, leaves=leaves))


@given(st.binary(max_size=3000), st.lists(st.integers(0, 1 << 16), max_size=5))
def test_noise_does_no_harm(raw: bytes, cuts: list[int]) -> None:
    """The same for bytes without any sense, on the other loop."""
    with asyncio.Runner() as runner:
        runner.run(throw(raw, cuts, leaves=False))
