"""A client that costs next to nothing: keeps what it reads, looks at it afterwards.

`Asker` keeps connections to one address; a `Call` is one request and its whole answer, checked to the last token by
`fault`. Independent of the gateway.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from time import perf_counter
from typing import cast

from bench.overhead.bodies import Bodies

TOKEN = re.compile(rb'"content":" (\d+)"')
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
KEY = b"bench-key"
"""Sent to all gateways; ours looks whose it is."""

EVENT = b"data: "
LAST_CHUNK = b"0\r\n\r\n"


class Call:
    """One request under way, and what has come of it."""

    __slots__ = (
        "_length",
        "_read",
        "body",
        "ended_s",
        "events",
        "expected",
        "first_s",
        "is_stream",
        "parts",
        "sent_s",
    )

    def __init__(self, expected: int, sent_s: float, *, is_stream: bool) -> None:
        self.expected = expected
        """Tokens."""
        self.sent_s = sent_s
        self.is_stream = is_stream
        self.first_s: float | None = None
        """When the first event or byte of the body had come."""
        self.ended_s: float | None = None
        self.events = 0
        self.parts: list[bytes] = []
        self._length: int | None = None
        self._read = 0

    def take(self, data: bytes, now_s: float) -> bool:
        """Keep some more of the answer; returns whether that was the end."""
        self.parts.append(data)
        if self.is_stream:
            self.events += data.count(EVENT)
            if self.first_s is None and self.events:
                self.first_s = now_s
            return data.endswith(LAST_CHUNK) or (len(data) < len(LAST_CHUNK) and self.joined().endswith(LAST_CHUNK))
        if self._length is None:
            head, _, _ = self.joined().partition(b"\r\n\r\n")
            found = LENGTH.search(head)
            if found is None:
                return self.joined().endswith(LAST_CHUNK)
            self._length = len(head) + 4 + int(found[1])
            self.first_s = now_s
            self._read = sum(map(len, self.parts))
        else:
            self._read += len(data)
        return self._read >= self._length

    def joined(self) -> bytes:
        return b"".join(self.parts)

    def fault(self) -> str | None:
        """What is wrong with the answer, None where every token has come, once and in order."""
        head, _, body = self.joined().partition(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            return f"{head.partition(bytes([13]))[0].decode('latin-1')}: {body[:200].decode('latin-1')}"
        if self.ended_s is None:
            return "the answer has no end"
        if not self.is_stream:
            return self._fault_of_unary(_unchunked(body) if LENGTH.search(head) is None else body)
        events = _unchunked(body)
        numbers = [int(number) for number in TOKEN.findall(events)]
        if numbers != list(range(self.expected)):
            return f"{len(numbers)} tokens of {self.expected}, or not in order"
        if not events.rstrip().endswith(b"data: [DONE]"):
            return "no [DONE]"
        return "a usage event that was not asked for" if b'"usage":{' in events else None

    def _fault_of_unary(self, body: bytes) -> str | None:
        content = json.loads(body)["choices"][0]["message"]["content"]
        return None if content == "".join(f" {number}" for number in range(self.expected)) else "not what was said"


def _unchunked(body: bytes) -> bytes:
    pieces: list[bytes] = []
    while True:
        size, _, rest = body.partition(b"\r\n")
        count = int(size, 16)
        if not count:
            return b"".join(pieces)
        pieces.append(rest[:count])
        body = rest[count + 2 :]


class Connection(asyncio.Protocol):
    """One connection, one call at a time."""

    def __init__(self, ended: Callable[[Connection, Call], None]) -> None:
        self._ended = ended
        self.call: Call | None = None
        self.transport: asyncio.Transport

    def ask(self, question: bytes, call: Call) -> None:
        self.call = call
        self.transport.write(question)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        call = self.call
        if call is not None and call.take(data, perf_counter()):
            call.ended_s = perf_counter()
            self.call = None
            self._ended(self, call)

    def connection_lost(self, exc: Exception | None) -> None:
        call, self.call = self.call, None
        if call is not None:
            self._ended(self, call)


class Asker:
    """Asks one or several addresses in turn over kept connections, and keeps all calls."""

    def __init__(self, ports: tuple[int, ...]) -> None:
        self._ports = ports
        self._idle: list[list[Connection]] = [[] for _ in ports]
        self._connections: list[Connection] = []
        self._turn = 0
        self._quiet = asyncio.Event()
        self.calls: list[Call] = []
        self.open: set[Call] = set()
        self.ended = 0
        self.again: Bodies | None = None
        """What a connection that falls free asks at once."""

    async def connect(self, count: int) -> None:
        """Keep at least `count` connections ready at each address."""
        loop = asyncio.get_running_loop()
        for idle, port in zip(self._idle, self._ports, strict=True):
            for _ in range(count - len(idle)):
                _, connection = await loop.create_connection(lambda: Connection(self._done), "127.0.0.1", port)
                self._connections.append(connection)
                idle.append(connection)

    def ask(self, body: bytes, tokens: int, *, is_stream: bool) -> Call | None:
        """Send a request; None where no connection is free."""
        self._turn = (self._turn + 1) % len(self._ports)
        idle = self._idle[self._turn]
        while idle:
            connection = idle.pop()
            if not connection.transport.is_closing():
                call = Call(tokens, perf_counter(), is_stream=is_stream)
                self.calls.append(call)
                self.open.add(call)
                connection.ask(question(body), call)
                return call
        return None

    async def all_ended(self, limit_s: float) -> None:
        """Wait until every call has its answer."""
        try:
            async with asyncio.timeout(limit_s):
                while self.open:
                    self._quiet.clear()
                    await self._quiet.wait()
        except TimeoutError:
            return  # What has no end is found by `fault`.

    def close(self) -> None:
        for connection in self._connections:
            connection.call = None
            connection.transport.abort()

    def faults(self) -> list[str]:
        """What was wrong with the answers; empty where all were whole."""
        return [fault for fault in (call.fault() for call in self.calls) if fault]

    def _done(self, connection: Connection, call: Call) -> None:
        self.open.discard(call)
        self.ended += 1
        if not connection.transport.is_closing():
            port = connection.transport.get_extra_info("peername")[1]
            self._idle[self._ports.index(port)].append(connection)
            if self.again is not None:
                self.ask(self.again.next(), self.again.tokens, is_stream=False)
        if not self.open:
            self._quiet.set()


def question(body: bytes) -> bytes:
    """A chat request as a client sends it, key and all."""
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nuser-agent: bench/1\r\naccept: */*\r\n"
        b"authorization: Bearer %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (KEY, len(body), body)
    )
