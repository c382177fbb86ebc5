"""Watches a stream of server-sent events as it passes: what may go on now, and what it tells.

Bytes in, bytes out; whatever way the stream is split, the same bytes come out. Nearly every read holds whole events
with nothing in them that concerns us, and costs two searches. Knows nothing of HTTP, sockets and clocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
from msgspec import Struct

from gateway.relay.pod_errors import PodError, read_stream_error
from gateway.relay.recorder import TAIL_BYTES, Kept
from routing.request import Api

USAGE = b'"usage"'
ERROR = b'"error"'
ABORT = b'"abort"'
"""One of these stands in every event that has to be looked at. Inside a JSON string their quotes would be escaped."""

CLOSING = (b'"content_block_stop"', b'"signature_delta"')
"""One of these stands in every event of a message that closes a block of it."""

EVENT_END = re.compile(rb"\n\r?\n")

HELD_BYTES = 64 << 10
"""Of an event that has not ended, or of what comes before the first token. What is longer is passed on as it comes."""

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What an event raises that is no JSON: bytes that are no text among it."""

PRELUDE = frozenset({"response.created", "response.queued", "response.in_progress"})
"""Events of a responses stream that an engine sends before it has computed anything."""

LAST_WORDS: dict[Api, re.Pattern[bytes]] = {
    Api.CHAT: re.compile(rb"^data: ?\[DONE\]", re.MULTILINE),
    Api.COMPLETIONS: re.compile(rb"^data: ?\[DONE\]", re.MULTILINE),
    Api.RESPONSES: re.compile(rb'"response\.(?:completed|incomplete|failed|cancelled)"'),
    Api.MESSAGES: re.compile(rb'"message_stop"'),
}
"""Without its last words a stream was cut, however tidily its connection ended."""


ABORTED = PodError(500, "The pod has given the request up.")


class Choice(Struct):
    finish_reason: str | None = None


class Choices(Struct):
    choices: list[Choice] = []


class Stop(Struct):
    stop_reason: str | None = None


class WholeMessage(Struct):
    """Anthropic's answer in one piece. vLLM leaves out what is null."""

    type: str = ""
    stop_reason: str | None = None


class Stopped(Struct):
    type: str = ""
    delta: Stop | None = None


class Identified(Struct):
    id: str | None = None


class Typed(Struct):
    """An event of a responses stream."""

    type: str = ""
    response: Identified | None = None


class UsageOnly(Struct):
    """The event that carries usage and no choice."""

    choices: list[object] | None = None
    usage: dict[str, object] | None = None


CHOICES = msgspec.json.Decoder(Choices)
STOPPED = msgspec.json.Decoder(Stopped)
WHOLE_MESSAGE = msgspec.json.Decoder(WholeMessage)
TYPED = msgspec.json.Decoder(Typed)
USAGE_ONLY = msgspec.json.Decoder(UsageOnly)


def concerns_us(events: bytes) -> bool:
    """Whether something in these may have to be looked at."""
    # CPython finds a short word backwards in half the time that it takes forwards.
    return events.rfind(USAGE) >= 0 or events.rfind(ERROR) >= 0 or events.rfind(ABORT) >= 0


def closes_block(events: bytes) -> bool:
    """Whether one of these closes a block of a message."""
    return any(events.rfind(word) >= 0 for word in CLOSING)


def concern_us_in_message(events: bytes) -> bool:
    """The same of `concerns_us` in Anthropic's API, where the end of a block is withheld too."""
    return concerns_us(events) or closes_block(events)


class Scanner:
    """One stream. `withholds_usage`: the pod was asked for a usage event that the client did not ask for.

    What closes a block of a message waits for what follows: an engine that gives a message up closes its block as if
    it had been whole, and says only behind that that it was not. To the client such a block is open, and can go on.
    """

    def __init__(self, api: Api, kept: Kept, *, withholds_usage: bool, held_bytes: int = HELD_BYTES) -> None:
        self._api = api
        self._held_bytes = held_bytes
        self._kept = kept
        self._withholds_usage = withholds_usage
        self.concerns: Callable[[bytes], bool] = concern_us_in_message if api is Api.MESSAGES else concerns_us
        """Whether something in these events may have to be looked at."""
        self._held = b""
        self._closing = b""
        self._prelude = b""
        self.is_flowing = False
        """The first token has passed, and nothing is held."""
        self._has_passed = False
        self._is_oversized = False
        self._last_was_oversized = False
        self.has_first_token = False
        self.response_id: str | None = None
        self.error: PodError | None = None
        """What the pod says went wrong inside the stream. Nothing behind it is passed on."""

    def take(self, payload: bytes) -> bytes:
        """What may go on now that this has come."""
        self._kept.add(payload)
        if self.is_flowing and payload.endswith(b"\n\n") and not self.concerns(payload):
            return payload
        return self._take_events(payload)

    def finish(self) -> bytes:
        """What is left when the stream has ended."""
        left, self._held = self._held, b""
        self._prelude += self._released(b"")
        if left and self._lets_pass(left):
            self._prelude += left
        left, self._prelude = self._prelude, b""
        return left

    @property
    def is_inside_event(self) -> bool:
        """Whether the beginning of an event has gone on without its end."""
        return self._is_oversized

    @property
    def has_said_all(self) -> bool:
        """Whether its last words have gone on, so that only the end of the body is still to come."""
        return self.has_first_token and not self._held and self.error is None and self.is_complete

    @property
    def is_complete(self) -> bool:
        """Whether the stream has said its last words."""
        words = LAST_WORDS.get(self._api)
        if words is None or self._last_was_oversized:
            return True
        told = self._kept.joined()
        return words.search(told, max(0, len(told) - TAIL_BYTES)) is not None

    def _take_events(self, payload: bytes) -> bytes:
        text = self._held + payload
        start = 0
        passed: list[bytes] = []
        # What is held has no end in it, but may have the beginning of one.
        for match in EVENT_END.finditer(text, max(0, len(self._held) - 2)):
            event, start = text[start : match.end()], match.end()
            self._last_was_oversized, self._is_oversized = self._is_oversized, False
            if self._last_was_oversized or self._lets_pass(event):
                passed.append(self._released(event))
            if self.error is not None:
                return self._begun(b"".join(passed))
        self._held = text[start:]
        if self._is_oversized or len(self._held) > self._held_bytes:
            passed.append(self._released(b"") + self._let_go())
        self.is_flowing = self.has_first_token and not self._held and not self._closing
        return self._begun(b"".join(passed))

    def _released(self, event: bytes) -> bytes:
        """This and what has waited for it; nothing where it closes a block, and waits itself."""
        if self._api is Api.MESSAGES and closes_block(event) and len(self._closing) < HELD_BYTES:
            self._closing += event
            return b""
        closing, self._closing = self._closing, b""
        return closing + event

    def _let_go(self) -> bytes:
        """Pass an event on in pieces. Its last bytes are held still: they may be half of the end that we look for."""
        self._is_oversized = self.has_first_token = True
        let_go, self._held = self._held[:-3], self._held[-3:]
        return let_go

    def _begun(self, passed: bytes) -> bytes:
        """Nothing goes on before the first token: until then another pod can still answer."""
        passed = self._prelude + passed
        if self._has_passed or self.has_first_token or len(passed) > self._held_bytes:
            self._has_passed = True
            self._prelude = b""
            return passed
        self._prelude = passed
        return b""

    def _lets_pass(self, event: bytes) -> bool:
        if self.has_first_token and not concerns_us(event):
            return True
        told = _told_by(event)
        if not told:
            return True
        if ERROR in told:
            self.error = read_stream_error(told)
            if self.error is not None:
                return False
        if self.error is None and is_aborted(self._api, told):
            self.error = ABORTED
            return False
        if self._withholds_usage and USAGE in told and _is_usage_only(told):
            return False
        if not self.has_first_token:
            self.has_first_token = not self._is_prelude(told)
        return True

    def _is_prelude(self, told: bytes) -> bool:
        if self._api is not Api.RESPONSES:
            return told == b"[DONE]"
        try:
            event = TYPED.decode(told)
        except UNREADABLE:
            return False
        self.response_id = event.response.id if event.response else self.response_id
        return event.type in PRELUDE


def _told_by(event: bytes) -> bytes:
    """The payload of one event; several of its lines are joined by line ends. Empty for a comment."""
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return lines[0] if len(lines) == 1 else b"\n".join(lines)


def _is_usage_only(told: bytes) -> bool:
    try:
        event = USAGE_ONLY.decode(told)
    except UNREADABLE:
        return False
    return event.choices == [] and event.usage is not None


def is_whole_aborted(api: Api, body: bytes) -> bool:
    """The same of a whole answer."""
    if api is not Api.MESSAGES:
        return is_aborted(api, body)
    try:
        message = WHOLE_MESSAGE.decode(body)
        return message.type == "message" and message.stop_reason is None
    except UNREADABLE:
        return False


def is_aborted(api: Api, told: bytes) -> bool:
    """Whether an engine says that it has stopped before the end: what it does when it is shut down.

    vLLM's Anthropic API has no word for it: a message that has ended for no reason was given up.
    """
    try:
        if api is Api.MESSAGES:
            return (
                b'"message_delta"' in told and (stop := STOPPED.decode(told).delta) is not None and not stop.stop_reason
            )
        return ABORT in told and any(choice.finish_reason == "abort" for choice in CHOICES.decode(told).choices)
    except UNREADABLE:
        return False
