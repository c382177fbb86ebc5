"""Scans a stream of server-sent events: what may be sent on now, what is held or withheld, and errors inside it.

Bytes in, bytes out; however the stream is split, the same bytes come out. Nearly every read holds whole events that
need not be looked at, and costs two searches. Independent of HTTP, sockets and clocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
from msgspec import Struct

from gateway.relay.pod_errors import UpstreamError, read_stream_error
from gateway.relay.recorder import TAIL_BYTES, ResponseRecorder
from routing.request import Api

USAGE = b'"usage"'
ERROR = b'"error"'
ABORT = b'"abort"'
"""Every event that has to be looked at contains one of these. Inside a JSON string their quotes would be escaped."""

CLOSING = (b'"content_block_stop"', b'"signature_delta"')
"""Every event that closes a block of a message contains one of these."""

EVENT_END = re.compile(rb"\n\r?\n")

MAX_HELD_BYTES = 64 << 10
"""Bytes held of an event that has not ended, or before the first token; what is longer is passed on as it comes."""

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Raised for an event that is not JSON or not UTF-8."""

PRELUDE = frozenset({"response.created", "response.queued", "response.in_progress"})
"""Events of a responses stream that an engine sends before it has computed anything."""

LAST_EVENT: dict[Api, re.Pattern[bytes]] = {
    Api.CHAT: re.compile(rb"^data: ?\[DONE\]", re.MULTILINE),
    Api.COMPLETIONS: re.compile(rb"^data: ?\[DONE\]", re.MULTILINE),
    Api.RESPONSES: re.compile(rb'"response\.(?:completed|incomplete|failed|cancelled)"'),
    Api.MESSAGES: re.compile(rb'"message_stop"'),
}
"""What the last event of a whole stream contains: a stream without it was cut, however cleanly its connection ended."""


ABORTED = UpstreamError(500, "The pod aborted the request.")


class _Choice(Struct):
    finish_reason: str | None = None


class _Choices(Struct):
    choices: list[_Choice] = []


class _Stop(Struct):
    stop_reason: str | None = None


class _UnaryMessage(Struct):
    """A whole answer in Anthropic's format. vLLM leaves out what is null."""

    type: str = ""
    stop_reason: str | None = None


class _Stopped(Struct):
    type: str = ""
    delta: _Stop | None = None


class _Identified(Struct):
    id: str | None = None


class _Typed(Struct):
    """An event of a responses stream."""

    type: str = ""
    response: _Identified | None = None


class _UsageOnly(Struct):
    """The event that carries usage and no choice."""

    choices: list[object] | None = None
    usage: dict[str, object] | None = None


_CHOICES = msgspec.json.Decoder(_Choices)
_STOPPED = msgspec.json.Decoder(_Stopped)
_UNARY_MESSAGE = msgspec.json.Decoder(_UnaryMessage)
_TYPED = msgspec.json.Decoder(_Typed)
_USAGE_ONLY = msgspec.json.Decoder(_UsageOnly)


def needs_inspection(events: bytes) -> bool:
    """Whether some of these events may have to be looked at."""
    # CPython finds a short word backwards in half the time of a forward search.
    return events.rfind(USAGE) >= 0 or events.rfind(ERROR) >= 0 or events.rfind(ABORT) >= 0


def closes_block(events: bytes) -> bool:
    """Whether one of these events closes a block of a message."""
    return any(events.rfind(word) >= 0 for word in CLOSING)


def message_needs_inspection(events: bytes) -> bool:
    """Whether some of these events of Anthropic's API may have to be looked at: the end of a block is held there."""
    return needs_inspection(events) or closes_block(events)


class EventScanner:
    """Scans one stream. `withholds_usage`: a usage event was requested on the client's behalf, and is withheld.

    The end of a message's block is held until the next event: an engine that aborts a message closes its block as if it
    were complete, and reports only behind that that it is not. To the client the block stays open, and can be resumed.
    """

    def __init__(
        self, api: Api, kept: ResponseRecorder, *, withholds_usage: bool, held_bytes: int = MAX_HELD_BYTES
    ) -> None:
        self._api = api
        self._held_bytes = held_bytes
        self._kept = kept
        self._withholds_usage = withholds_usage
        self.concerns: Callable[[bytes], bool] = message_needs_inspection if api is Api.MESSAGES else needs_inspection
        """Whether some of these events may have to be looked at."""
        # Grown in place: a pod may send an event byte by byte, and copying what is held for each would be quadratic.
        self._held = bytearray()
        self._closing = b""
        self._prelude = bytearray()
        self.is_flowing = False
        """The first token has passed, and no byte is held."""
        self._has_passed = False
        self._is_oversized = False
        self._last_was_oversized = False
        self.has_first_token = False
        self.response_id: str | None = None
        self.error: UpstreamError | None = None
        """The error that an event of the stream reports. Nothing behind it is passed on."""

    def take(self, payload: bytes) -> bytes:
        """Return the bytes that may be sent on now that these have come."""
        self._kept.add(payload)
        if self.is_flowing and payload.endswith(b"\n\n") and not self.concerns(payload):
            return payload
        return self._take_events(payload)

    def finish(self) -> bytes:
        """Return the bytes that are left at the end of the stream."""
        left, self._held = bytes(self._held), bytearray()
        self._prelude += self._released(b"")
        if left and self._lets_pass(left):
            self._prelude += left
        left, self._prelude = bytes(self._prelude), bytearray()
        return left

    @property
    def is_inside_event(self) -> bool:
        """Whether the beginning of an event has been sent on without its end."""
        return self._is_oversized

    @property
    def has_sent_all(self) -> bool:
        """Whether the last event has been sent on, so that only the end of the body is missing."""
        return self.has_first_token and not self._held and self.error is None and self.is_complete

    @property
    def is_complete(self) -> bool:
        """Whether the last event of the stream has come."""
        pattern = LAST_EVENT.get(self._api)
        if pattern is None or self._last_was_oversized:
            return True
        recorded = self._kept.joined()
        return pattern.search(recorded, max(0, len(recorded) - TAIL_BYTES)) is not None

    def _take_events(self, payload: bytes) -> bytes:
        if EVENT_END.search(self._held[-2:] + payload) is None:
            self._held += payload
            self.is_flowing = False
            return self._start_of(self._let_go())
        text = bytes(self._held) + payload
        start = 0
        passed: list[bytes] = []
        is_plain: bool | None = None  # Whether no event behind the first token has to be looked at.
        # The held bytes contain no event end, but may end with the beginning of one.
        for match in EVENT_END.finditer(text, max(0, len(self._held) - 2)):
            event, start = text[start : match.end()], match.end()
            if self.has_first_token and not (self._is_oversized or self._closing):
                if is_plain is None:
                    is_plain = not self.concerns(text[start - len(event) :])
                if is_plain or not self.concerns(event):
                    self._last_was_oversized = False
                    passed.append(event)
                    continue
            self._last_was_oversized, self._is_oversized = self._is_oversized, False
            if self._last_was_oversized or self._lets_pass(event):
                passed.append(self._released(event))
            if self.error is not None:
                return self._start_of(b"".join(passed))
        self._held = bytearray(text[start:])
        passed.append(self._let_go())
        self.is_flowing = self.has_first_token and not self._held and not self._closing
        return self._start_of(b"".join(passed))

    def _released(self, event: bytes) -> bytes:
        """Return what was held for this event, and the event; nothing where it closes a block and is held itself."""
        if self._api is Api.MESSAGES and closes_block(event) and len(self._closing) < MAX_HELD_BYTES:
            self._closing += event
            return b""
        closing, self._closing = self._closing, b""
        return closing + event

    def _let_go(self) -> bytes:
        """Return what may pass of an event that has not ended: nothing, or where it is too long to be held, all but its
        last bytes, which may be half of its end.
        """
        if not self._is_oversized and len(self._held) <= self._held_bytes:
            return b""
        self._is_oversized = self.has_first_token = True
        let_go, self._held = bytes(self._held[:-3]), self._held[-3:]
        return self._released(b"") + let_go

    def _start_of(self, passed: bytes) -> bytes:
        """Hold everything before the first token: until then another pod can still answer."""
        if self._has_passed:
            return passed
        self._prelude += passed
        if not self.has_first_token and len(self._prelude) <= self._held_bytes:
            return b""
        self._has_passed = True
        passed, self._prelude = bytes(self._prelude), bytearray()
        return passed

    def _lets_pass(self, event: bytes) -> bool:
        if self.has_first_token and not needs_inspection(event):
            return True
        data = _data_of(event)
        if not data:
            return True
        if ERROR in data:
            self.error = read_stream_error(data)
            if self.error is not None:
                return False
        if self.error is None and is_aborted(self._api, data):
            self.error = ABORTED
            return False
        if self._withholds_usage and USAGE in data and _is_usage_only(data):
            return False
        if not self.has_first_token:
            self.has_first_token = not self._is_prelude(data)
        return True

    def _is_prelude(self, data: bytes) -> bool:
        if self._api is not Api.RESPONSES:
            return data == b"[DONE]"
        try:
            event = _TYPED.decode(data)
        except UNREADABLE:
            return False
        self.response_id = event.response.id if event.response else self.response_id
        return event.type in PRELUDE


def _data_of(event: bytes) -> bytes:
    """Return the data of one event, several lines of it joined by line ends; empty for a comment."""
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return lines[0] if len(lines) == 1 else b"\n".join(lines)


def _is_usage_only(data: bytes) -> bool:
    try:
        event = _USAGE_ONLY.decode(data)
    except UNREADABLE:
        return False
    return event.choices == [] and event.usage is not None


def is_unary_aborted(api: Api, body: bytes) -> bool:
    """Whether a whole answer was aborted by its engine."""
    if api is not Api.MESSAGES:
        return is_aborted(api, body)
    try:
        message = _UNARY_MESSAGE.decode(body)
        return message.type == "message" and message.stop_reason is None
    except UNREADABLE:
        return False


def is_aborted(api: Api, data: bytes) -> bool:
    """Whether an event reports that the engine has aborted the request, as it does when it is shut down.

    vLLM's Anthropic API has no value for it: a message that ends without a stop reason was aborted.
    """
    try:
        if api is Api.MESSAGES:
            return (
                b'"message_delta"' in data
                and (stop := _STOPPED.decode(data).delta) is not None
                and not stop.stop_reason
            )
        return ABORT in data and any(choice.finish_reason == "abort" for choice in _CHOICES.decode(data).choices)
    except UNREADABLE:
        return False
