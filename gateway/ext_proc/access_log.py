"""Envoy's access log, streamed to us: which side ended a request whose response we did not see end.

A lost pod and a disconnected client look alike to a picker: its stream ends. Envoy knows which it was, and logs it a
moment later if configured to (`http_grpc` access log, `buffer_size_bytes: 0`). Otherwise the end of the stream counts.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum

from google.protobuf.message import DecodeError

from gateway.ext_proc.http2.connection import HandlerFactory
from gateway.ext_proc.http2.stream import GrpcStream, GrpcStreamHandler
from gateway.ext_proc.messages_pb2 import HttpLogEntry, StreamAccessLogsMessage

WAIT_S = 1.0
"""How long a log entry is waited for, if any Envoy streams its log to us."""

MAX_KEPT_CAUSES = 1024
"""Entries kept that arrived before their exchange ended."""

INVALID_ARGUMENT = 3


class TerminationCause(Enum):
    """How a request ended, by Envoy's log."""

    SERVED = "served"
    CLIENT_GONE = "client gone"
    POD_LOST = "pod lost"
    POD_UNREACHABLE = "pod unreachable"
    POD_TIMEOUT = "pod timeout"


OnCause = Callable[[TerminationCause | None], None]


class AccessLog:
    """One per gateway process."""

    def __init__(self, is_needed: Callable[[], bool]) -> None:
        """`is_needed`: whether there are requests whose end it could still report."""
        self.is_needed = is_needed
        self.streams = 0
        self._early: OrderedDict[str, TerminationCause] = OrderedDict()
        self._waiting: dict[str, tuple[OnCause, asyncio.TimerHandle]] = {}

    def __repr__(self) -> str:
        return f"<AccessLog from {self.streams} Envoys, {len(self._waiting)} waiting>"

    def services(self) -> dict[bytes, HandlerFactory]:
        path = b"/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
        return {path: lambda stream: AccessLogStream(self, stream)}

    def wait_for_cause(self, request_id: str, then: OnCause) -> None:
        """Call `then` with how a request ended, now or within `WAIT_S`; None if it is not known."""
        word = self._early.pop(request_id, None)
        if word is not None or not self.streams:
            then(word)
            return
        timer = asyncio.get_running_loop().call_later(WAIT_S, self._give_up, request_id)
        self._waiting[request_id] = then, timer

    def add_entry(self, entry: HttpLogEntry) -> None:
        """Apply one entry of the log."""
        request_id, word = entry.request.request_id, cause_of(entry)
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            then, timer = waiting
            timer.cancel()
            then(word)
            return
        self._early[request_id] = word
        if len(self._early) > MAX_KEPT_CAUSES:
            self._early.popitem(last=False)

    def _give_up(self, request_id: str) -> None:
        then, _ = self._waiting.pop(request_id)
        then(None)


def cause_of(entry: HttpLogEntry) -> TerminationCause:
    """Return the cause that the response flags of an entry give."""
    flags = entry.common_properties.response_flags
    if flags.downstream_connection_termination or flags.downstream_remote_reset:
        return TerminationCause.CLIENT_GONE
    if flags.upstream_connection_failure or flags.no_healthy_upstream:
        return TerminationCause.POD_UNREACHABLE
    if flags.upstream_remote_reset or flags.upstream_connection_termination or flags.upstream_protocol_error:
        return TerminationCause.POD_LOST
    return TerminationCause.POD_TIMEOUT if flags.upstream_request_timeout else TerminationCause.SERVED


class AccessLogStream(GrpcStreamHandler):
    """The log stream of one Envoy."""

    __slots__ = ("_log", "_stream")

    def __init__(self, log: AccessLog, stream: GrpcStream) -> None:
        self._log = log
        self._stream = stream
        log.streams += 1

    def on_message(self, message: bytes) -> None:
        try:
            entries = StreamAccessLogsMessage.FromString(message)
        except DecodeError:
            self._stream.finish(INVALID_ARGUMENT, "This is no StreamAccessLogsMessage.")
            self._log.streams -= 1
            return
        for entry in entries.http_logs.log_entry:
            self._log.add_entry(entry)

    def on_end(self) -> None:
        self._log.streams -= 1
        self._stream.finish()

    def on_lost(self) -> None:
        self._log.streams -= 1

    def on_too_large(self) -> None:
        self._log.streams -= 1
        self._stream.finish(INVALID_ARGUMENT, "The message is too long.")

    def on_drain(self) -> None:
        """End the stream: Envoy never does, and goes on at another picker."""
        if not self._log.is_needed():
            self.on_end()
