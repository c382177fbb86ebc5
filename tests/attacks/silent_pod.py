"""A pod that answers at once or begins and says no more, for thousands at a time: no engine is behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from tests.gateway.http.scripted import until

MODEL = "tiny"
HEAD_END = b"\r\n\r\n"
EVENT = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{"index":0,"delta":'
EVENT += b'{"content":"%b"},"finish_reason":null}]}\n\n'
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
MODELS = b'{"object":"list","data":[{"id":"tiny","object":"model","max_model_len":1000000}]}'
WHOLE = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Hi."},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":1000,"completion_tokens":2,"total_tokens":1002}}'
)
METRICS = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="4096"} 1.0\n'
FLOOD_EVENTS = 64
FLOOD_TEXT = b"x" * 16_000


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def complete(body: bytes, kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body)


ONE_EVENT = STREAM + chunk(EVENT % b"Hi")
FLOOD = STREAM + chunk(EVENT % FLOOD_TEXT) * FLOOD_EVENTS
"""A megabyte of one answer."""


class SilentPod(asyncio.Protocol):
    """One connection. A streamed answer begins and never ends; with `flood` in its prompt it is a large one."""

    def __init__(self, met: set[SilentPod]) -> None:
        self.met = met
        """Those who are connected."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._read = b""
        self.met.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.met.discard(self)

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(HEAD_END)) >= 0:
            head = self._read[:end].lower()
            _, _, length = head.partition(b"content-length: ")
            size = end + len(HEAD_END) + int(length.split(b"\r\n")[0] or b"0")
            if len(self._read) < size:
                return
            requested, self._read = self._read[:size], self._read[size:]
            self.transport.write(_answer(requested))


def _answer(requested: bytes) -> bytes:
    if requested.startswith(b"POST"):
        if b'"stream":true' not in requested.replace(b" ", b""):
            return complete(WHOLE)
        return FLOOD if b"flood" in requested else ONE_EVENT
    if requested.startswith(b"GET /metrics"):
        return complete(METRICS, b"text/plain")
    return complete(MODELS)


@asynccontextmanager
async def silent_pod() -> AsyncIterator[str]:
    """Its URL."""
    met = set[SilentPod]()
    server = await asyncio.get_running_loop().create_server(lambda: SilentPod(met), "127.0.0.1", 0, backlog=4096)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        server.close()
        for each in tuple(met):
            each.transport.abort()
        await until(lambda: not met)
