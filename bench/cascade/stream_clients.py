"""Clients of a cascade, many at once, and what they see of their streams. Spread over the time between two tokens, so
that chunks do not come in heaps.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from time import perf_counter

from bench.cascade.gateway_process import Gateway
from bench.overhead.accounts import CpuBook

NAMES = count()


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """What one client asks for."""

    model: str
    tokens: int
    pace_s: float
    wants_logprobs: bool = False
    user: str = ""

    def body(self) -> bytes:
        request_body: dict[str, object] = {
            "model": self.model,
            "max_tokens": self.tokens,
            "seed": round(self.pace_s * 1000),
        }
        request_body |= {"stream": True, "user": self.user}
        request_body |= {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
        request_body |= {"logprobs": True, "top_logprobs": 5} if self.wants_logprobs else {}
        return json.dumps(request_body).encode()


@dataclass(frozen=True, slots=True)
class StreamResult:
    """What a client saw: when its first content came, on the bench's clock, and of how many events."""

    request: StreamRequest
    sent_s: float
    first_s: float
    events: int
    sure: int
    """Events with log-probabilities."""


def some(streams: int, model: str, tokens: int, pace_s: float, *, wants_logprobs: bool = False) -> list[StreamRequest]:
    return [StreamRequest(model, tokens, pace_s, wants_logprobs, f"s{next(NAMES)}") for _ in range(streams)]


async def play(gateway: Gateway, requests: Sequence[StreamRequest]) -> tuple[list[StreamResult], float]:
    """All of them, and the CPU seconds that the gateway took."""
    book = CpuBook(gateway.pid)
    before_s = book.used_s()
    tasks = [
        asyncio.create_task(_later(at * each.pace_s / len(requests), gateway.port, each))
        for at, each in enumerate(requests)
    ]
    results = [await task for task in tasks]
    return results, book.used_s() - before_s


async def _later(wait_s: float, port: int, request: StreamRequest) -> StreamResult:
    await asyncio.sleep(wait_s)
    return await _stream(port, request)


async def _stream(port: int, request: StreamRequest) -> StreamResult:
    raw = request.body()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
    sent_s, first_s, events, sure = perf_counter(), 0.0, 0, 0
    writer.write(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
    while piece := await reader.read(1 << 16):
        events += piece.count(b"\n\ndata: ") + piece.count(b"\r\ndata: ")
        sure += piece.count(b'"logprobs":{')
        if not first_s and b'"content":" ' in piece:
            first_s = perf_counter()
    writer.close()
    return StreamResult(request, sent_s, first_s, events, sure)
