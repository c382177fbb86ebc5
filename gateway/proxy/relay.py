"""The relay: a pod's answer on its way to the client, read by read. This is the path of every token.

    pod's socket -> Line.data_received -> llhttp -> Answer.take(payload) -> Reply.send -> client's socket
    pod's socket -> Flow.data_received -> client's socket

The second way is that of nearly every token (`flow.py`): a read that is one whole chunk is written as it came.

No task wakes up and nothing is queued on this path: the loop's call that brings bytes from the pod is the one that
writes them to the client's transport. The task that leads the request sleeps until the answer has ended.

An answer is one of three things, told apart by its head: a stream of events, a whole body, an error. The client is sent
nothing before the first token of a stream, the first byte of a body, or the end of an error, so that until then another
pod can still answer. A client that does not read fast enough pauses its pod (`Reply.source`), and memory stays bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from msgspec import Struct

from gateway.carrier import Leg, LegEnd
from gateway.proxy.flow import Flow, Parsing
from gateway.proxy.kept import Kept, facts_of_answer, facts_of_stream
from gateway.proxy.pod_errors import PodError, about_model, error_body, error_event, read_error
from gateway.proxy.reply import Reply
from gateway.proxy.scanner import Scanner
from routing.fleet import Engine
from routing.placement import Usage
from routing.reading import AnswerFacts, answer_bytes, read_whole
from routing.request import Api, Request

ERROR_BYTES = 64 << 10
"""Of a pod's error body: enough for its message."""

EVENT_STREAM = "text/event-stream"
PREFILL_ONLY = frozenset({Api.EMBEDDINGS, Api.RERANK, Api.SCORE, Api.POOLING, Api.CLASSIFY})
"""Their answer is there when the prefill is done. A whole generated answer says nothing of its first token."""

BUSY = frozenset({429, 503})
OUR_KEY_IS_WRONG = frozenset({401, 403})
NOT_BUILT = 501


class PodHead(Struct, frozen=True, gc=False):
    """What of a pod's head matters. `length` is None where only the end of the body tells."""

    status: int
    content_type: str
    length: int | None
    is_encoded: bool = False


class Placed(Protocol):
    """What the relay needs of a placement: where it is, and whom to tell of the first token."""

    @property
    def request(self) -> Request: ...
    @property
    def engine(self) -> Engine: ...
    def first_token(self, now_s: float) -> None: ...


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


class Relay:
    """One attempt: one pod's answer to one request, from asking to its end."""

    def __init__(
        self,
        reply: Reply,
        placement: Placed,
        path: str,
        *,
        loop: asyncio.AbstractEventLoop,
        withholds_usage: bool,
        kept_bytes: int,
        begun: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._begun = begun
        self.withholds_usage = withholds_usage
        self.reply = reply
        self.placement = placement
        self.api = placement.request.api
        self.path = path
        self.kept = Kept(kept_bytes)
        self.is_stream = False
        self.ended: asyncio.Future[None] = loop.create_future()
        self.end = LegEnd.ANSWERED
        self.status = 0
        self.detail = ""
        self.counted: Usage | None = None
        self.was_stale = False
        """The connection had been closed by the pod, perhaps before it was asked: to ask once more is fair."""

    def __repr__(self) -> str:
        return f"<Relay of {self.placement}, {self.end.value if self.ended.done() else 'under way'}>"

    def open_answer(self, head: PodHead) -> Answer | None:
        """What the head says is coming; None where it cannot be passed on."""
        self.status = head.status
        if head.status >= 400:
            return Refusal(self)
        if head.is_encoded or head.status >= 300:
            what = "compressed" if head.is_encoded else "redirected"
            self.fail(LegEnd.MALFORMED, f"The pod {what} its answer, unasked.")
            return None
        if head.content_type.startswith(EVENT_STREAM):
            self.is_stream = True
            return EventStream(self, head, Scanner(self.api, self.kept, withholds_usage=self.withholds_usage))
        return WholeBody(self, head)

    def begin(self, head: PodHead, first: bytes, *, is_stream: bool) -> None:
        """The client gets the head and the first bytes: from here on only this pod can answer."""
        self._begun()
        if is_stream or self.api in PREFILL_ONLY:
            self.placement.first_token(self._loop.time())
        # A stream may lose an event or gain one: whatever the pod says, its length is not known.
        length = None if is_stream else head.length
        self.reply.begin(head.status, head.content_type, first, length=length, is_stream=is_stream)

    def tell(self, error: PodError) -> None:
        """The client gets a pod's no, in its own dialect."""
        self.status = error.status
        reply = self.reply
        body = error_body(error, anthropic=reply.is_anthropic, request_id=reply.request_id)
        reply.answer(error.status, body)

    def answered(self) -> None:
        """The client has been sent all of the answer, or was told what is wrong with its request."""
        self._end(LegEnd.ANSWERED, "")

    def cut_short(self, last_words: bytes, detail: str, counted: Usage) -> None:
        """A limit ends the stream here: the client gets these last words, and the engine is told to stop."""
        self.counted = counted
        source = self.reply.source
        self.reply.send(last_words)
        self.reply.end()
        if source is not None:
            source.abort()
        self._end(LegEnd.ANSWERED, detail)

    def fail(self, end: LegEnd, detail: str) -> None:
        """The attempt has come to nothing."""
        self._end(end, detail)

    def leg(self) -> Leg:
        """What came of it. Reads the kept bytes, so not on the path of any token."""
        if self.end is not LegEnd.ANSWERED or self.status >= 400:
            return Leg(self.end, self.status, begun=self.reply.begun, detail=self.detail)
        facts, answer = self._told()
        return Leg(
            self.end,
            self.status,
            begun=True,
            usage=facts.usage,
            finish_reason=facts.finish_reason if self.counted is None else "length",
            response_id=facts.response_id if self.api is Api.RESPONSES else None,
            answer=answer,
            detail=self.detail,
            counted=self.counted,
        )

    def _told(self) -> tuple[AnswerFacts, bytes]:
        """What the answer tells, and the canonical bytes of what was generated, where all of it was kept."""
        api, kept = self.api, self.kept
        keeps_answer = api.generates and kept.is_whole
        if self.is_stream:
            facts = facts_of_stream(api, kept)
            return facts, answer_bytes(api, kept.joined(), stream=True) if keeps_answer else b""
        return read_whole(api, kept.joined()) if keeps_answer else (facts_of_answer(api, kept), b"")

    def _end(self, end: LegEnd, detail: str) -> None:
        if self.ended.done():
            return
        self.end, self.detail = end, detail
        self.ended.set_result(None)


class EventStream:
    """Events of a stream: passed on as they came, but for what the scanner holds or withholds."""

    __slots__ = ("_flow", "_head", "_relay", "_reply", "_scanner")

    def __init__(self, relay: Relay, head: PodHead, scanner: Scanner) -> None:
        self._relay = relay
        self._reply = relay.reply
        self._head = head
        self._scanner = scanner
        self._flow: Flow | None = None

    def flow(self, line: Parsing) -> Flow | None:
        if not self._scanner.is_flowing or not self._reply.is_chunked:
            return None
        if self._flow is None:
            self._flow = Flow(line, self._relay.kept, self._reply.write_chunk, self._reply.passed)
        else:
            self._flow.count()  # Others may have passed meanwhile.
        return self._flow

    def take(self, payload: bytes) -> None:
        if self._relay.ended.done():  # It was cut short in the middle of a read.
            return
        passed = self._scanner.take(payload)
        if passed and self._reply.begun:
            self._reply.send(passed)
        elif passed:
            self._relay.begin(self._head, passed, is_stream=True)
        if self._scanner.error is not None:
            self._tell(self._scanner.error)

    def end(self) -> None:
        left = self._scanner.finish()
        if self._scanner.error is not None:
            self._tell(self._scanner.error)
        elif not self._scanner.is_complete:
            self._relay.fail(LegEnd.LOST, "The pod ended its stream before the answer was complete.")
        else:
            if not self._reply.begun:
                self._relay.begin(self._head, left, is_stream=True)
            elif left:
                self._reply.send(left)
            self._reply.end()
            self._relay.answered()

    def _tell(self, error: PodError) -> None:
        """The pod has said inside its stream, under a head that says 200, that it failed, or why it will not go on."""
        relay, reply = self._relay, self._reply
        relay.status = error.status
        if reply.source is not None:
            reply.source.abort()  # What follows has no meaning.
        if error.status in BUSY or not error.is_clients:
            relay.fail(LegEnd.BUSY if error.status in BUSY else LegEnd.BROKEN, error.message)
            return
        if reply.begun:
            reply.send(error_event(error, anthropic=reply.is_anthropic, request_id=reply.request_id))
            reply.end()
        else:
            relay.tell(error)
        relay.answered()


class WholeBody:
    """An answer in one piece, however many reads it comes in."""

    __slots__ = ("_head", "_relay")

    def __init__(self, relay: Relay, head: PodHead) -> None:
        self._relay = relay
        self._head = head

    def take(self, payload: bytes) -> None:
        relay = self._relay
        relay.kept.add(payload)
        if relay.reply.begun:
            relay.reply.send(payload)
        else:
            relay.begin(self._head, payload, is_stream=False)

    def flow(self, line: Parsing) -> None:
        """A body is few reads."""

    def end(self) -> None:
        relay = self._relay
        if not relay.reply.begun:
            relay.begin(self._head, b"", is_stream=False)
        relay.reply.end()
        relay.answered()


class Refusal:
    """A pod's no. Told to the client where it is about the request; kept from it where another pod may say yes."""

    __slots__ = ("_body", "_relay")

    def __init__(self, relay: Relay) -> None:
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
            relay.tell(about_model(replace(error, status=status), relay.placement.request.model, relay.path))
            relay.answered()
