"""A line and its relay between two sockets that are none: what a pod sends goes in, what the client gets comes out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from httptools import HttpResponseParser

from cascade.judging import AnswerJudge
from gateway.config.limits import Timeouts
from gateway.http.client_request import IncomingRequest
from gateway.http.response_writer import ResponseWriter
from gateway.pipeline.attempt import AttemptResult
from gateway.relay.holdback import HoldbackRelay
from gateway.relay.relay import Relay, RelayOptions
from gateway.relay.upstream_connection import UpstreamConnection
from routing.pairing.prefill_side import DecodeHandover
from routing.pods import Engine
from routing.request import Api, Request


class FakeTransport:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.written = b""
        self.is_aborted = False
        self.protocol: asyncio.Protocol | None = None
        """Set by itself, in place of the one that was connected."""

    def write(self, raw: bytes) -> None:
        self.written += raw

    def writelines(self, pieces: list[bytes]) -> None:
        self.written += b"".join(pieces)

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted


@dataclass
class FakeOwner:
    timeouts: Timeouts = field(default_factory=Timeouts)
    given_back: int = 0

    def release(self, line: UpstreamConnection) -> None:
        self.given_back += 1

    def forget(self, line: UpstreamConnection) -> None:
        """It was never remembered."""

    def knows(self, url: str) -> bool:
        return True


@dataclass
class FakePlacement:
    request: Request
    engine: Engine = field(default_factory=lambda: Engine(0, "http://pod"))
    first_tokens: list[float] = field(default_factory=list)
    handover: DecodeHandover | None = None

    def first_token(self, now_s: float) -> None:
        self.first_tokens.append(now_s)


@dataclass
class Heard:
    """What the client made of the bytes it was sent."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_whole: bool = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_whole = True


def hear(raw: bytes) -> Heard:
    received = Heard()
    if raw:
        parser = HttpResponseParser(received)
        parser.feed_data(raw)
        received.status = parser.get_status_code()
    return received


class Scene:
    """One relay under way."""

    def __init__(
        self,
        api: Api = Api.CHAT,
        *,
        withholds_usage: bool = True,
        version: str = "1.1",
        kept: int = 1 << 18,
        judge: AnswerJudge | None = None,
    ):
        self.client = FakeTransport()
        self.owner = FakeOwner()
        self.answered = 0
        requested = IncomingRequest()
        requested.version = version
        self.reply = ResponseWriter(
            requested, "r-1", cast("asyncio.Transport", self.client), keep_alive=True, answered=self._count_answered
        )
        self.reply.api = api
        self.reply.is_anthropic = api is Api.MESSAGES
        self.placement = FakePlacement(Request("r-1", api, "tiny", stream=True))
        self._kept, self._withholds_usage = kept, withholds_usage
        self.ask(judge)

    def ask(self, judge: AnswerJudge | None = None) -> None:
        """Have another pod answer, on a connection of its own."""
        self.socket = FakeTransport()
        options: RelayOptions = {
            "loop": asyncio.get_running_loop(),
            "withholds_usage": self._withholds_usage,
            "recorded_bytes": self._kept,
        }
        if judge is None:
            self.relay = Relay(self.reply, self.placement, "/v1/x", **options)
        else:
            self.relay = HoldbackRelay(judge, self.reply, self.placement, "/v1/x", **options)
        self.line = UpstreamConnection(self.owner, "http://pod")
        self.line.connection_made(cast("asyncio.Transport", self.socket))
        self.line.send_request(self.relay, [b"question"], first_byte_by_s=1e9)

    def _count_answered(self) -> None:
        self.answered += 1

    def feed(self, pieces: list[bytes]) -> Scene:
        for piece in pieces:
            if not self.socket.is_aborted:
                (self.socket.protocol or self.line).data_received(piece)
        return self

    def hang_up(self) -> Scene:
        protocol = self.socket.protocol or self.line
        protocol.eof_received()
        protocol.connection_lost(None)
        return self

    @property
    def received(self) -> Heard:
        return hear(self.client.written)

    @property
    def leg(self) -> AttemptResult:
        assert self.relay.ended.done()
        return self.relay.result()


def staged(play: Callable[[], Any]) -> Any:
    """Run something that wants a loop to be there."""

    async def run() -> Any:
        return play()

    with asyncio.Runner() as runner:
        return runner.run(run())
