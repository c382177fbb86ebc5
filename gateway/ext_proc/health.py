"""grpc.health.v1: whether we live, and whether we are ready to pick.

`liveness` is served as long as we are; `readiness`, the name of the external processor and no name at all while the
gateway takes requests.
"""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.message import DecodeError

from gateway.ext_proc.checkers import Checkers
from gateway.ext_proc.http2.handler import Serve
from gateway.ext_proc.http2.stream import Stream
from gateway.ext_proc.messages_pb2 import HealthCheckRequest, HealthCheckResponse

LIVENESS = "liveness"
READINESS = frozenset({"", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"})

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
NOT_FOUND, INVALID_ARGUMENT = 5, 3


class Health:
    """What is known of our health, told once (`Check`) or as it changes (`Watch`)."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self.checkers = Checkers()

    def services(self) -> dict[bytes, Serve]:
        return {
            b"/grpc.health.v1.Health/Check": lambda stream: Check(self, stream),
            b"/grpc.health.v1.Health/Watch": lambda stream: Watch(self, stream),
        }

    def status(self, service: str) -> int:
        if service == LIVENESS:
            return SERVING
        if service not in READINESS:
            return SERVICE_UNKNOWN
        return SERVING if self._is_ready() else NOT_SERVING


class Check:
    """One question, one answer."""

    __slots__ = ("_health", "_stream")

    def __init__(self, health: Health, stream: Stream) -> None:
        self._health = health
        self._stream = stream

    def take(self, message: bytes) -> None:
        status = self._health.status(name) if (name := _service_of(message)) is not None else None
        if status is None:
            self._stream.finish(INVALID_ARGUMENT, "This is no HealthCheckRequest.")
        elif status == SERVICE_UNKNOWN:
            self._stream.finish(NOT_FOUND, "There is no service of this name.")
        else:
            self._stream.send(HealthCheckResponse(status=status).SerializeToString())
            if name != LIVENESS:
                self._health.checkers.tell(self._stream.wire, is_ready=status == SERVING)
            self._stream.finish()

    def ended(self) -> None:
        self._stream.finish(INVALID_ARGUMENT, "No question was asked.")

    def lost(self) -> None:
        """Nobody waits any more."""

    def overfull(self) -> None:
        self._stream.finish(INVALID_ARGUMENT, "The question is too long.")

    def check(self, now_s: float) -> None:
        """Who asks nothing takes no room; the connection has bounds of its own."""

    def leave(self) -> None:
        """One answer is no long way."""


class Watch(Check):
    """The answer now, and again whenever it is another one."""

    __slots__ = ("_name", "_told")

    def __init__(self, health: Health, stream: Stream) -> None:
        super().__init__(health, stream)
        self._name: str | None = None
        self._told: int | None = None

    def take(self, message: bytes) -> None:
        self._name = _service_of(message)
        self._tell()

    def ended(self) -> None:
        """The question has been asked; its answers go on."""

    def check(self, now_s: float) -> None:
        self._tell()

    def leave(self) -> None:
        """Whoever watches hears of it by the last answer, and has to watch another one."""
        self._tell()
        self._stream.finish()

    def _tell(self) -> None:
        if self._name is None:
            return
        status = self._health.status(self._name)
        if status != self._told:
            self._told = status
            self._stream.send(HealthCheckResponse(status=status).SerializeToString())


def _service_of(message: bytes) -> str | None:
    try:
        return HealthCheckRequest.FromString(message).service
    except DecodeError:
        return None
