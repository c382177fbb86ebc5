"""Envoy's access log, sent to us as it is written: who ended a request that we saw end without its answer's end.

A pod lost and a client gone look alike to a picker: its stream ends. Envoy knows which it was, and says so a moment
later, where it is set up to (`http_grpc` access log, `buffer_size_bytes: 0`). Without it the end is taken as it looks.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum

from google.protobuf.message import DecodeError

from gateway.ext_proc.http2.connection import Serve
from gateway.ext_proc.http2.stream import Stream
from gateway.ext_proc.messages_pb2 import HttpLogEntry, StreamAccessLogsMessage

WAIT_S = 1.0
"""How long a word is waited for where a log is written to us at all."""

KEPT = 1024
"""Words that came before anybody asked for them."""

INVALID_ARGUMENT = 3


class Word(Enum):
    """How a request ended, by Envoy's word."""

    SERVED = "served"
    CLIENT_GONE = "client gone"
    POD_LOST = "pod lost"
    POD_UNREACHABLE = "pod unreachable"
    POD_TIMEOUT = "pod timeout"


Then = Callable[[Word | None], None]


class AccessLog:
    """One per gateway process."""

    def __init__(self, is_needed: Callable[[], bool]) -> None:
        """`is_needed`: whether there are requests of which it could still tell the end."""
        self.is_needed = is_needed
        self.streams = 0
        self._early: OrderedDict[str, Word] = OrderedDict()
        self._waiting: dict[str, tuple[Then, asyncio.TimerHandle]] = {}

    def __repr__(self) -> str:
        return f"<AccessLog from {self.streams} Envoys, {len(self._waiting)} waiting>"

    def services(self) -> dict[bytes, Serve]:
        path = b"/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
        return {path: lambda stream: LogStream(self, stream)}

    def ask(self, request_id: str, then: Then) -> None:
        """Have `then` told how a request ended: now, soon, or that nobody knows."""
        word = self._early.pop(request_id, None)
        if word is not None or not self.streams:
            then(word)
            return
        timer = asyncio.get_running_loop().call_later(WAIT_S, self._give_up, request_id)
        self._waiting[request_id] = then, timer

    def take(self, entry: HttpLogEntry) -> None:
        """One line of the log."""
        request_id, word = entry.request.request_id, word_of(entry)
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            then, timer = waiting
            timer.cancel()
            then(word)
            return
        self._early[request_id] = word
        if len(self._early) > KEPT:
            self._early.popitem(last=False)

    def _give_up(self, request_id: str) -> None:
        then, _ = self._waiting.pop(request_id)
        then(None)


def word_of(entry: HttpLogEntry) -> Word:
    """What the flags of a line say."""
    flags = entry.common_properties.response_flags
    if flags.downstream_connection_termination or flags.downstream_remote_reset:
        return Word.CLIENT_GONE
    if flags.upstream_connection_failure or flags.no_healthy_upstream:
        return Word.POD_UNREACHABLE
    if flags.upstream_remote_reset or flags.upstream_connection_termination or flags.upstream_protocol_error:
        return Word.POD_LOST
    return Word.POD_TIMEOUT if flags.upstream_request_timeout else Word.SERVED


class LogStream:
    """One Envoy that writes its log to us."""

    __slots__ = ("_log", "_stream")

    def __init__(self, log: AccessLog, stream: Stream) -> None:
        self._log = log
        self._stream = stream
        log.streams += 1

    def take(self, message: bytes) -> None:
        try:
            told = StreamAccessLogsMessage.FromString(message)
        except DecodeError:
            self._stream.finish(INVALID_ARGUMENT, "This is no StreamAccessLogsMessage.")
            self._log.streams -= 1
            return
        for entry in told.http_logs.log_entry:
            self._log.take(entry)

    def ended(self) -> None:
        self._log.streams -= 1
        self._stream.finish()

    def lost(self) -> None:
        self._log.streams -= 1

    def overfull(self) -> None:
        self._log.streams -= 1
        self._stream.finish(INVALID_ARGUMENT, "The message is too long.")

    def check(self, now_s: float) -> None:
        """A log may be quiet for as long as it likes."""

    def leave(self) -> None:
        """Envoy never ends its log; it goes on at another picker."""
        if not self._log.is_needed():
            self.ended()
