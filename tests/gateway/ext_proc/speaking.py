"""Somebody else's HTTP/2 (`h2`), as a client of ours: gRPC streams, and frames that no honest client sends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    PingReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)

EXT_PROC = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


@dataclass
class Call:
    """One stream as its client sees it."""

    caller: Caller
    number: int
    received: bytes = b""
    messages: list[bytes] = field(default_factory=list)
    trailers: dict[str, str] = field(default_factory=dict)
    reset: int | None = None
    has_ended: bool = False

    async def log_event(self, message: bytes, *, ends: bool = False) -> None:
        """Send a message, as windows allow."""
        left = b"\0" + len(message).to_bytes(4, "big") + message
        h2 = self.caller.h2
        while left:
            room = min(h2.local_flow_control_window(self.number), h2.max_outbound_frame_size)
            if not room:
                await self.caller.hear()
                continue
            h2.send_data(self.number, left[:room])
            left = left[room:]
            await self.caller.flush()
        if ends:
            await self.end()

    async def end(self) -> None:
        self.caller.h2.end_stream(self.number)
        await self.caller.flush()

    async def message(self) -> bytes:
        """The next message that comes."""
        while not self.messages:
            assert not self.has_ended, (self.trailers, self.reset)
            await self.caller.hear()
        return self.messages.pop(0)

    async def status(self) -> str:
        """What its trailers say, once it has ended."""
        while not self.has_ended:
            await self.caller.hear()
        return self.trailers.get("grpc-status", f"reset {self.reset}")

    def take(self, piece: bytes) -> None:
        self.received += piece
        while len(self.received) >= 5 and len(self.received) >= (size := 5 + int.from_bytes(self.received[1:5], "big")):
            self.messages.append(self.received[5:size])
            self.received = self.received[size:]


@dataclass
class Caller:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    h2: H2Connection
    calls: dict[int, Call] = field(default_factory=dict)
    goodbye: ConnectionTerminated | None = None
    acks: int = 0
    pings: int = 0
    is_over: bool = False

    async def call(self, path: str, *, method: str = "POST", fields: Sequence[tuple[str, str]] = ()) -> Call:
        """Open a stream. `fields`: what else its headers say."""
        number = self.h2.get_next_available_stream_id()
        head = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "picker")]
        self.h2.send_headers(number, [*head, ("te", "trailers"), ("content-type", "application/grpc"), *fields])
        await self.flush()
        self.calls[number] = call = Call(self, number)
        return call

    async def ping(self) -> None:
        """Ask whether the other side is there, and hear all that it said before."""
        wanted = self.acks + 1
        self.h2.ping(b"12345678")
        await self.flush()
        while self.acks < wanted:
            await self.hear()

    async def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()

    async def hear(self) -> None:
        """Take whatever comes next."""
        async with asyncio.timeout(60):
            raw = await self.reader.read(1 << 16)
        if not raw:
            self.is_over = True
            for call in self.calls.values():
                call.has_ended = True
            return
        for event in self.h2.receive_data(raw):
            self._take(event)
        await self.flush()

    async def until_over(self) -> None:
        while not self.is_over:
            await self.hear()

    def _take(self, event: Event) -> None:
        match event:
            case ConnectionTerminated():
                self.goodbye = event
            case PingAckReceived():
                self.acks += 1
            case DataReceived(stream_id=int(number), data=bytes(piece), flow_controlled_length=int(size)):
                self.calls[number].take(piece)
                if size:
                    self.h2.acknowledge_received_data(size, number)
            case PingReceived():
                self.pings += 1
            case (
                ResponseReceived(stream_id=int(number), headers=list(headers))
                | TrailersReceived(stream_id=int(number), headers=list(headers))
            ):
                self.calls[number].trailers |= {_text(name): _text(value) for name, value in headers}
            case StreamEnded(stream_id=int(number)):
                self.calls[number].has_ended = True
            case StreamReset(stream_id=int(number), error_code=code):
                self.calls[number].reset = int(code or 0)
                self.calls[number].has_ended = True


def _text(raw: bytes | str) -> str:
    return raw.decode() if isinstance(raw, bytes) else raw


@asynccontextmanager
async def calling(where: str, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Caller]:
    """A connection to `HOST:PORT`."""
    host, _, port = where.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    caller = Caller(reader, writer, H2Connection(H2Configuration(client_side=True, header_encoding="utf-8")))
    caller.h2.initiate_connection()
    await caller.flush()
    await caller.hear()  # its windows
    try:
        yield caller
    finally:
        writer.close()
