"""grpc.health.v1: whether the gateway is alive, and whether it is ready to pick endpoints.

`liveness` is served as long as the process runs; `readiness`, the name of the external processor and no name at all
while the gateway accepts requests. Counts who has read that it is not: the port must not close before Envoy's health
check has, since Envoy that finds it closed uses another picker, but not with a body of which it has written more than
64 KB already: it keeps no more of it, and in full duplex it does not wait before it writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from google.protobuf.message import DecodeError

from gateway.ext_proc.http2.connection import HandlerFactory
from gateway.ext_proc.http2.stream import GrpcStream, GrpcStreamHandler
from gateway.ext_proc.messages_pb2 import HealthCheckRequest, HealthCheckResponse

REQUIRED_NEGATIVES = 2
"""A client that checks again after a NOT_SERVING has acted on the first one: its checks follow each other."""


class HealthCheckTracker:
    """Connections that check readiness. One per gateway process."""

    def __init__(self) -> None:
        self._noes: dict[object, int] = {}
        self._stirred = asyncio.Event()

    def __repr__(self) -> str:
        return f"<HealthCheckTracker on {len(self._noes)} connections>"

    def record(self, connection: object, *, is_ready: bool) -> None:
        """Note the response that a connection was sent."""
        self._noes[connection] = 0 if is_ready else self._noes.get(connection, 0) + 1
        self._stirred.set()

    def forget(self, connection: object) -> None:
        """Drop a connection that has ended."""
        self._noes.pop(connection, None)
        self._stirred.set()

    async def wait_until_known(self, limit_s: float) -> None:
        """Wait until all current clients know that we are not ready, at most `limit_s`. Later ones see nothing else."""
        checks = tuple(self._noes)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while any(self._noes.get(one, REQUIRED_NEGATIVES) < REQUIRED_NEGATIVES for one in checks):
                    self._stirred.clear()
                    await self._stirred.wait()


LIVENESS = "liveness"
READINESS = frozenset({"", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"})

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
NOT_FOUND, INVALID_ARGUMENT = 5, 3


class HealthService:
    """The health service: responds once (`HealthCheckHandler`) or on every change (`HealthWatchHandler`)."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self.checkers = HealthCheckTracker()

    def services(self) -> dict[bytes, HandlerFactory]:
        return {
            b"/grpc.health.v1.Health/Check": lambda stream: HealthCheckHandler(self, stream),
            b"/grpc.health.v1.Health/Watch": lambda stream: HealthWatchHandler(self, stream),
        }

    def status(self, service: str) -> int:
        if service == LIVENESS:
            return SERVING
        if service not in READINESS:
            return SERVICE_UNKNOWN
        return SERVING if self._is_ready() else NOT_SERVING


class HealthCheckHandler(GrpcStreamHandler):
    """A unary health check."""

    __slots__ = ("_health", "_stream")

    def __init__(self, health: HealthService, stream: GrpcStream) -> None:
        self._health = health
        self._stream = stream

    def on_message(self, message: bytes) -> None:
        status = self._health.status(name) if (name := _service_of(message)) is not None else None
        if status is None:
            self._stream.finish(INVALID_ARGUMENT, "This is no HealthCheckRequest.")
        elif status == SERVICE_UNKNOWN:
            self._stream.finish(NOT_FOUND, "There is no service of this name.")
        else:
            self._stream.send(HealthCheckResponse(status=status).SerializeToString())
            if name != LIVENESS:
                self._health.checkers.record(self._stream.wire, is_ready=status == SERVING)
            self._stream.finish()

    def on_end(self) -> None:
        self._stream.finish(INVALID_ARGUMENT, "No question was asked.")

    def on_too_large(self) -> None:
        self._stream.finish(INVALID_ARGUMENT, "The question is too long.")


class HealthWatchHandler(HealthCheckHandler):
    """A streamed health check: the status now, and on every change."""

    __slots__ = ("_name", "_reported")

    def __init__(self, health: HealthService, stream: GrpcStream) -> None:
        super().__init__(health, stream)
        self._name: str | None = None
        self._reported: int | None = None

    def on_message(self, message: bytes) -> None:
        self._name = _service_of(message)
        self._notify()

    def on_end(self) -> None:
        """The request is complete; responses go on."""

    def on_tick(self, now_s: float) -> None:
        self._notify()

    def on_drain(self) -> None:
        """Send the last status and end: the client has to watch another gateway."""
        self._notify()
        self._stream.finish()

    def _notify(self) -> None:
        if self._name is None:
            return
        status = self._health.status(self._name)
        if status != self._reported:
            self._reported = status
            self._stream.send(HealthCheckResponse(status=status).SerializeToString())


def _service_of(message: bytes) -> str | None:
    try:
        return HealthCheckRequest.FromString(message).service
    except DecodeError:
        return None
