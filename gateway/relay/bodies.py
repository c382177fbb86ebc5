"""What is done with the body of a pod's answer: a stream of events, a whole body, an error.

The client is sent nothing before the first token of a stream, the first byte of a body, or the end of an error, so that
until then another pod can still answer. Knows no connection: what goes on goes by way of the relay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from msgspec import Struct

from gateway.http.response_writer import Reply
from gateway.pipeline.attempt import LegEnd
from gateway.relay.fast_path import EVENT_END, Flow, Parsing
from gateway.relay.pinned_request import Errand
from gateway.relay.pod_errors import PodError, about_model, error_event, read_error
from gateway.relay.recorder import Kept
from gateway.relay.sse import ABORTED, Scanner, is_whole_aborted
from routing.request import Api, Request, Usage

ERROR_BYTES = 64 << 10
"""Of a pod's error body: enough for its message."""

HELD_BYTES = 64 << 10
"""Of an answer in one piece: while its client has seen nothing of it, another pod can still give a whole one."""

BUSY = frozenset({429, 503})
OUR_KEY_IS_WRONG = frozenset({401, 403})
NOT_BUILT = 501


class PodHead(Struct, frozen=True, gc=False):
    """What of a pod's head matters. `length` is None where only the end of the body tells."""

    status: int
    content_type: str
    length: int | None
    is_encoded: bool = False


class Answer(Protocol):
    """What is done with the body of an answer."""

    def take(self, payload: bytes) -> None:
        """Some more of the body, never empty."""
        ...

    def flow(self, line: Parsing) -> Flow | None:
        """The shorter way for chunks to come, where all that came has gone on and the client takes chunks too."""
        ...

    def end(self) -> None:
        """All of it has come."""
        ...


class Asking(Protocol):
    """What was placed: the request, and whom to tell of the first token."""

    @property
    def request(self) -> Request: ...
    def first_token(self, now_s: float) -> None: ...


class Relaying(Protocol):
    """What a body needs of the relay that it comes through."""

    reply: Reply
    kept: Kept
    api: Api
    path: str
    status: int
    held_s: float
    events: int
    ended: asyncio.Future[None]

    @property
    def placement(self) -> Asking: ...
    def begin(self, head: PodHead, first: bytes, *, is_stream: bool) -> None: ...
    def tell(self, error: PodError) -> None: ...
    def answered(self) -> None: ...
    def fail(self, end: LegEnd, detail: str) -> None: ...
    def disown(self, end: LegEnd, detail: str) -> None: ...
    def passed(self, events: int) -> int: ...
    def goes_on(self) -> None: ...
    def give_up(self, counted: Usage) -> None: ...
    def now_s(self) -> float: ...
    def call_later(self, wait_s: float, call: Callable[[], None]) -> asyncio.TimerHandle: ...


class EventStream:
    """Events of a stream: passed on as they came, but for what the scanner holds or withholds."""

    __slots__ = ("_flow", "_head", "_relay", "_reply", "_scanner")

    def __init__(self, relay: Relaying, head: PodHead, scanner: Scanner) -> None:
        self._relay = relay
        self._reply = relay.reply
        self._head = head
        self._scanner = scanner
        self._flow: Flow | None = None

    def flow(self, line: Parsing) -> Flow | None:
        if not self._scanner.is_flowing or not self._reply.is_chunked:
            return None
        if self._flow is None:
            relay = self._relay
            self._flow = Flow(line, relay.kept, self._reply.write_chunk, relay.passed, self._scanner.concerns)
        else:
            self._flow.count()  # Others may have passed meanwhile.
        return self._flow

    def take(self, payload: bytes) -> None:
        if self._relay.ended.done():  # It was cut short in the middle of a read.
            return
        passed = self._scanner.take(payload)
        if passed:
            self.passes(passed)
        if self._scanner.error is not None and not self._relay.ended.done():
            self._tell(self._scanner.error)

    def passes(self, events: bytes) -> None:
        """These may go on, as far as the stream is concerned."""
        self._relay.events += events.count(EVENT_END)
        if self._reply.begun:
            self._reply.send(events)
        else:
            self._relay.begin(self._head, events, is_stream=True)

    def end(self) -> None:
        left = self._scanner.finish()
        if self._scanner.error is not None:
            self._tell(self._scanner.error)
        elif not self._scanner.is_complete:
            self._relay.fail(LegEnd.LOST, "The pod ended its stream before the answer was complete.")
        else:
            if left or not self._reply.begun:
                self.passes(left)
            if self._relay.ended.done():
                return
            self._reply.end()
            self._relay.answered()

    def _tell(self, error: PodError) -> None:
        """The pod has said inside its stream, under a head that says 200, that it failed, or why it will not go on."""
        relay, reply = self._relay, self._reply
        relay.status = error.status
        if reply.source is not None:
            reply.source.abort()  # What follows has no meaning.
        if error.status in BUSY or not error.is_clients:
            relay.fail(_end_of(error), error.message)
            return
        if reply.begun:
            reply.send(error_event(error, anthropic=reply.is_anthropic, request_id=reply.request_id))
            reply.end()
        else:
            relay.tell(error)
        relay.answered()


def _end_of(error: PodError) -> LegEnd:
    """Who gives a request up is being told to stop: that says nothing against the request."""
    if error is ABORTED:
        return LegEnd.LOST
    return LegEnd.BUSY if error.status in BUSY else LegEnd.BROKEN


class WholeBody:
    """An answer in one piece, however many reads it comes in. One that is not long goes on when all of it is there."""

    __slots__ = ("_head", "_held", "_held_bytes", "_relay")

    def __init__(self, relay: Relaying, head: PodHead) -> None:
        self._relay = relay
        self._head = head
        self._held: list[bytes] = []
        self._held_bytes = 0

    def take(self, payload: bytes) -> None:
        relay = self._relay
        relay.kept.add(payload)
        if relay.reply.begun:
            relay.reply.send(payload)
            return
        self._held.append(payload)
        self._held_bytes += len(payload)
        if self._held_bytes > HELD_BYTES:
            held, self._held = b"".join(self._held), []
            relay.begin(self._head, held, is_stream=False)

    def flow(self, line: Parsing) -> None:
        """A body is few reads."""

    def end(self) -> None:
        relay = self._relay
        if not relay.reply.begun:
            held = b"".join(self._held)
            if is_whole_aborted(relay.api, held):
                relay.fail(_end_of(ABORTED), ABORTED.message)
                return
            relay.begin(self._head, held, is_stream=False)
        relay.reply.end()
        relay.answered()


class Refusal:
    """A pod's no. Told to the client where it is about the request; kept from it where another pod may say yes."""

    __slots__ = ("_body", "_relay")

    def __init__(self, relay: Relaying) -> None:
        self._relay = relay
        self._body = b""

    def take(self, payload: bytes) -> None:
        self._body += payload[: ERROR_BYTES - len(self._body)]

    def flow(self, line: Parsing) -> None:
        """It is read first."""

    def end(self) -> None:
        relay = self._relay
        error = read_error(relay.status, self._body)
        if error.status in BUSY:
            relay.fail(LegEnd.BUSY, error.message)
        elif error.status in OUR_KEY_IS_WRONG:
            relay.fail(LegEnd.BROKEN, f"The pod does not take the gateway's key ({error.status}).")
        elif error.status >= 500 and error.status != NOT_BUILT:
            relay.fail(LegEnd.BROKEN, error.message)
        else:
            # What no pod of the model can do (501) is asked wrongly, not broken.
            status = 400 if error.status == NOT_BUILT else error.status
            placement = relay.placement
            model = "" if isinstance(placement, Errand) else placement.request.model
            relay.tell(about_model(replace(error, status=status), model, relay.path))
            relay.answered()
