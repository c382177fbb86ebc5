"""The relay: one pod's response on its way to the client, read by read. This is the path of every token.

    pod -> UpstreamConnection.data_received -> llhttp -> EventStream.take -> ResponseWriter.send -> client
    pod -> PassthroughStream.data_received -> client

Nearly every token takes the second path (`fast_path.py`): a read that is one whole chunk is written as it came. No
task wakes up and nothing is queued: the loop's call that brings bytes from the pod writes them to the client's
transport. The task of the request sleeps until the response has ended. A client that reads too slowly pauses its pod
(`reply.source`), so memory stays bounded.

The head decides how the body is handled: a stream of events, a whole body, or an error. The client is sent nothing
before the first token of a stream, the first 64 KiB or the end of a body, or the end of an error: until then another
pod can still answer. Responses that are held back (`holdback.py`) or continue a cut stream (`resumption.py`) have
relays of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import NotRequired, Protocol, TypedDict, Unpack

from gateway.http.response_writer import ResponseWriter
from gateway.limits.accounts import RequestMeter
from gateway.pipeline.attempt import AttemptResult, AttemptStatus
from gateway.pipeline.transport import PinnedRequest
from gateway.relay.ending import last_events
from gateway.relay.fast_path import EVENT_END, ParsingConnection, PassthroughStream
from gateway.relay.pod_errors import UpstreamError, error_body, error_event, explain_not_found, read_error
from gateway.relay.recorder import ResponseRecorder, facts_of_answer, facts_of_stream
from gateway.relay.sse import ABORTED, EventScanner, is_unary_aborted
from gateway.relay.upstream_connection import ResponseBodyHandler, ResponseHead
from routing.pairing.prefill_side import DecodeHandover
from routing.pods import Engine
from routing.reading import ResponseFacts, read_complete, response_bytes
from routing.rejection import Reason
from routing.request import GENERATING, Api, Request, Usage

EVENT_STREAM = "text/event-stream"

PREFILL_ONLY = frozenset({Api.EMBEDDINGS, Api.RERANK, Api.SCORE, Api.POOLING, Api.CLASSIFY})
"""APIs whose response is complete when the prefill is. A whole generated answer says nothing about its first token."""

MAX_ERROR_BYTES = 64 << 10
"""Bytes kept of a pod's error body: enough for its message."""

MAX_HELD_BODY_BYTES = 64 << 10
"""Bytes held of a whole body: while the client has seen none of them, another pod can still give a whole answer."""

WITHOUT_ANSWER = frozenset({204, 205, 206})
"""Statuses of success whose body is empty or a part. A request about a stored response may be answered by 204."""

BUSY_STATUSES = frozenset({429, 503})
KEY_REJECTED_STATUSES = frozenset({401, 403})
NOT_IMPLEMENTED = 501

UNLIMITED_EVENTS = 1 << 29
"""Events; no stream has as many."""


class PlacedAttempt(Protocol):
    """A placement, as far as a relay uses it."""

    @property
    def request(self) -> Request: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def handover(self) -> DecodeHandover | None: ...
    def first_token(self, now_s: float) -> None:
        """Note the time of the first token; later calls have no effect."""
        ...


class RelayOptions(TypedDict):
    """How one attempt is relayed."""

    loop: asyncio.AbstractEventLoop
    withholds_usage: bool
    """The usage event was requested on the client's behalf."""
    recorded_bytes: int
    """Bytes of the response that are recorded."""
    meter: NotRequired[RequestMeter | None]
    """Meters the stream, and may end it; None: not metered here."""
    on_begin: NotRequired[Callable[[bool], None]]
    """Called when the client is sent the head, with whether the response is a stream."""


class Relay:
    """One attempt: one pod's response to one request, from sending it to the end of the response."""

    def __init__(
        self, reply: ResponseWriter, placement: PlacedAttempt, path: str, **options: Unpack[RelayOptions]
    ) -> None:
        self._on_begin = options.get("on_begin")
        self._meter = options.get("meter")
        self._is_limited = False
        """A limit has ended the stream."""
        self.loop = options["loop"]
        self.withholds_usage = options["withholds_usage"]
        self.reply = reply
        self.placement = placement
        self.api = placement.request.api
        self.path = path
        self.recorder = ResponseRecorder(options["recorded_bytes"])
        self.events = 0
        """Events that the client has been sent, of the whole answer."""
        self.events_left = UNLIMITED_EVENTS
        """After how many more `count_sent` is to be called again; 0 where a limit has ended the stream."""
        self.scanner: EventScanner | None = None
        """Of a stream, once its head has come."""
        self.has_started = False
        self.is_stream = False
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.end = AttemptStatus.OK
        self.status = 0
        self.detail = ""
        self.metered_usage: Usage | None = None
        self.held_back_s = 0.0
        """Seconds that a stream was held back before the client was sent its first event."""
        self.was_stale = False
        """The pod had closed the connection, perhaps before the request arrived: it may be sent once more."""

    def __repr__(self) -> str:
        return f"<Relay of {self.placement}, {self.end.value if self.ended.done() else 'in flight'}>"

    # -- the response as it comes ----------------------------------------------------------------------------------

    def open_response(self, head: ResponseHead) -> ResponseBodyHandler | None:
        """Return the handler of the body that this head announces; None if it cannot be passed on."""
        self.status = head.status
        if head.status >= 400:
            return UpstreamErrorBody(self)
        if head.is_encoded or head.status >= 300:
            what = "Content-Encoding" if head.is_encoded else "redirect"
            self.fail(AttemptStatus.INVALID_RESPONSE, f"The pod sent an unrequested {what}.")
            return None
        if head.status in WITHOUT_ANSWER and not isinstance(self.placement, PinnedRequest):
            self.fail(AttemptStatus.INVALID_RESPONSE, f"The pod sent status {head.status}, which has no whole answer.")
            return None
        self.is_stream = head.content_type[: len(EVENT_STREAM)].lower() == EVENT_STREAM
        return self._open_body(head)

    def _open_body(self, head: ResponseHead) -> ResponseBodyHandler | None:
        if not self.is_stream:
            return UnaryBody(self, head)
        self.scanner = EventScanner(self.api, self.recorder, withholds_usage=self.withholds_usage)
        return EventStream(self, head, self.scanner)

    def begin(self, head: ResponseHead, first: bytes, *, is_stream: bool) -> None:
        """Send the client the head and the first bytes: from here on no other pod can begin an answer."""
        self.has_started = True
        if self._on_begin is not None:
            self._on_begin(self.is_stream)
        if is_stream or self.api in PREFILL_ONLY:
            self.placement.first_token(self.loop.time())
        # A stream may lose an event or gain one: whatever the pod says, its length is not known.
        length = None if is_stream else head.length
        self.reply.begin(head.status, head.content_type, first, length=length, is_stream=is_stream)

    def count_sent(self, events: int) -> int:
        """Count events that the client was sent, and end the stream where a limit is reached.

        Returns after how many more to call again; 0 where the stream was ended.
        """
        self.events += events
        meter = self._meter
        if meter is not None and not self._is_limited:
            left = meter.count_events(events)
            self.events_left = min(left or 1, UNLIMITED_EVENTS)
            if meter.cut_reason is not None and self.is_stream and not self.ended.done():
                self._end_by_limit(meter, meter.cut_reason)
        return self.events_left

    def _end_by_limit(self, meter: RequestMeter, reason: Reason) -> None:
        """Send the client the events that end a stream at its longest, and stop the engine."""
        usage, source, reply = meter.usage(), self.reply.source, self.reply
        last = last_events(
            self.api,
            self.recorder.joined(),
            usage,
            reason=reason,
            sequences=self.placement.request.sequences,
            includes_usage=not self.withholds_usage,
        )
        self._is_limited = True
        self.events_left = 0
        self.metered_usage = usage
        reply.send(last)
        reply.end()
        if source is not None:
            source.abort()
        self._end(AttemptStatus.OK, f"ended by a limit: {reason.value}")

    # -- how it ends -----------------------------------------------------------------------------------------------

    def send_error(self, error: UpstreamError) -> None:
        """Send the client a pod's error as the whole response, in the client's dialect."""
        self.status = error.status
        reply = self.reply
        body = error_body(error, anthropic=reply.is_anthropic, request_id=reply.request_id)
        reply.answer(error.status, body)

    def finish_if_delivered(self) -> bool:
        """End it as answered if the client has the last event, though the pod has not ended the body.

        Returns whether that is so.
        """
        scanner = self.scanner
        if self.ended.done() or not self.has_started or scanner is None or not scanner.has_sent_all:
            return False
        self.succeed()
        return True

    def succeed(self) -> None:
        """End it: the client has been sent all of the answer, or what is wrong with its request."""
        self._end(AttemptStatus.OK, "")

    def fail(self, end: AttemptStatus, detail: str) -> None:
        """End the attempt as failed; as answered if only the end of the body was missing."""
        if not self.ended.done() and not self.reply.has_ended and self.finish_if_delivered():
            self.reply.end()
            return
        self._end(end, detail)

    def discard(self, end: AttemptStatus, detail: str) -> None:
        """End the attempt and stop the engine: none of what comes is for the client, even after its last event."""
        if self.reply.source is not None:
            self.reply.source.abort()
        self._end(end, detail)

    def _end(self, end: AttemptStatus, detail: str) -> None:
        if self.ended.done():
            return
        self.end, self.detail = end, detail or self.detail
        self.ended.set_result(None)

    # -- what came of it -------------------------------------------------------------------------------------------

    def result(self) -> AttemptResult:
        """Return the result of the attempt. Reads the recorded bytes, so it is not on the path of any token."""
        if self.end is not AttemptStatus.OK or self.status >= 400:
            return AttemptResult(
                self.end, self.status, started=self.reply.has_started, counted=self.metered_usage, detail=self.detail
            )
        facts, answer = self._facts()
        return AttemptResult(
            self.end,
            self.status,
            started=True,
            usage=facts.usage,
            finish_reason=facts.finish_reason if self.metered_usage is None else "length",
            response_id=facts.response_id if self.api is Api.RESPONSES else None,
            answer=answer,
            counted=self.metered_usage,
            held_s=self.held_back_s,
            was_paused=self.reply.was_paused,
            detail=self.detail,
        )

    def _facts(self) -> tuple[ResponseFacts, bytes]:
        """Return what the answer reports, and the canonical bytes of what was generated if all of it was recorded."""
        api, kept = self.api, self.recorder
        keeps_answer = api in GENERATING and kept.is_whole
        if self.is_stream:
            facts = facts_of_stream(api, kept)
            return facts, response_bytes(api, kept.joined(), stream=True) if keeps_answer else b""
        return read_complete(api, kept.joined()) if keeps_answer else (facts_of_answer(api, kept), b"")


class EventStream:
    """Handles a stream of events: passed on as they came, but for what the scanner holds or withholds."""

    __slots__ = ("_flow", "_head", "_relay", "_reply", "_scanner")

    def __init__(self, relay: Relay, head: ResponseHead, scanner: EventScanner) -> None:
        self._relay = relay
        self._reply = relay.reply
        self._head = head
        self._scanner = scanner
        self._flow: PassthroughStream | None = None

    def fast_path(self, line: ParsingConnection) -> PassthroughStream | None:
        """Return the fast path if nothing is held and the client takes chunks as well."""
        if not self._scanner.is_flowing or not self._reply.is_chunked:
            return None
        if self._flow is None:
            relay = self._relay
            self._flow = PassthroughStream(
                line,
                relay.recorder,
                self._reply.write_chunk,
                relay.count_sent,
                self._scanner.concerns,
                relay.events_left,
            )
        else:
            self._flow.report_count()  # Events may have passed by the parser meanwhile.
        return self._flow

    def take(self, payload: bytes) -> None:
        """Pass on what may pass of these bytes; end the attempt at an error event."""
        if self._relay.ended.done():  # It was ended in the middle of a read.
            return
        passed = self._scanner.take(payload)
        if passed:
            self.pass_on(passed)
        if self._scanner.error is not None and not self._relay.ended.done():
            self._fail(self._scanner.error)

    def pass_on(self, events: bytes) -> None:
        """Send the client events that the scanner lets pass."""
        if self._reply.has_started:
            self._reply.send(events)
        else:
            self._relay.begin(self._head, events, is_stream=True)
        self._relay.count_sent(events.count(EVENT_END))

    def end(self) -> None:
        """End the response: as lost where the last event of a whole stream has not come."""
        left = self._scanner.finish()
        if self._scanner.error is not None:
            self._fail(self._scanner.error)
        elif not self._scanner.is_complete:
            self._relay.fail(
                AttemptStatus.CONNECTION_RESET, "The pod closed the stream before the response was complete."
            )
        else:
            if left or not self._reply.has_started:
                self.pass_on(left)
            if self._relay.ended.done():
                return
            self._reply.end()
            self._relay.succeed()

    def _fail(self, error: UpstreamError) -> None:
        """Handle an error event: under a head that says 200 the pod reports that it failed, or rejects the request."""
        relay, reply = self._relay, self._reply
        relay.status = error.status
        if reply.source is not None:
            reply.source.abort()  # What follows has no meaning.
        if error.status in BUSY_STATUSES or not error.is_client_error:
            relay.fail(_end_of(error), error.message)
            return
        if reply.has_started:
            reply.send(error_event(error, anthropic=reply.is_anthropic, request_id=reply.request_id))
            reply.end()
        else:
            relay.send_error(error)
        relay.succeed()


def _end_of(error: UpstreamError) -> AttemptStatus:
    """An engine that aborts a request is being shut down: that says nothing against the request."""
    if error is ABORTED:
        return AttemptStatus.CONNECTION_RESET
    return AttemptStatus.UPSTREAM_BUSY if error.status in BUSY_STATUSES else AttemptStatus.UPSTREAM_5XX


class UnaryBody:
    """Handles a response in one piece, however many reads it comes in; a short one is sent when all of it has come."""

    __slots__ = ("_head", "_held", "_held_bytes", "_relay")

    def __init__(self, relay: Relay, head: ResponseHead) -> None:
        self._relay = relay
        self._head = head
        self._held: list[bytes] = []
        self._held_bytes = 0

    def take(self, payload: bytes) -> None:
        """Hold these bytes, or send them if the body is already too long to be held."""
        relay = self._relay
        relay.recorder.add(payload)
        if relay.reply.has_started:
            relay.reply.send(payload)
            return
        self._held.append(payload)
        self._held_bytes += len(payload)
        if self._held_bytes > MAX_HELD_BODY_BYTES:
            held, self._held = b"".join(self._held), []
            relay.begin(self._head, held, is_stream=False)

    def fast_path(self, line: ParsingConnection) -> None:
        """Return None: a body is few reads."""

    def end(self) -> None:
        """Send what is held, and end the response."""
        relay = self._relay
        if not relay.reply.has_started:
            held = b"".join(self._held)
            if is_unary_aborted(relay.api, held):
                relay.fail(_end_of(ABORTED), ABORTED.message)
                return
            relay.begin(self._head, held, is_stream=False)
        relay.reply.end()
        relay.succeed()


class UpstreamErrorBody:
    """Handles a pod's error response: sent to the client if it is about the request; else another pod may answer."""

    __slots__ = ("_body", "_relay")

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._body = b""

    def take(self, payload: bytes) -> None:
        """Keep these bytes, as far as a message may need them."""
        self._body += payload[: MAX_ERROR_BYTES - len(self._body)]

    def fast_path(self, line: ParsingConnection) -> None:
        """Return None: the error is read first."""

    def end(self) -> None:
        """End the attempt by what the error is about."""
        relay = self._relay
        error = read_error(relay.status, self._body)
        if error.status in BUSY_STATUSES:
            relay.fail(AttemptStatus.UPSTREAM_BUSY, error.message)
        elif error.status in KEY_REJECTED_STATUSES:
            relay.fail(
                AttemptStatus.UPSTREAM_5XX,
                f"The pod rejected the gateway's API key (status {error.status}); check pod_api_key.",
            )
        elif error.status >= 500 and error.status != NOT_IMPLEMENTED:
            relay.fail(AttemptStatus.UPSTREAM_5XX, error.message)
        else:
            # What no pod of the model can do (501) is an error of the request.
            status = 400 if error.status == NOT_IMPLEMENTED else error.status
            placement = relay.placement
            model = "" if isinstance(placement, PinnedRequest) else placement.request.model
            relay.send_error(explain_not_found(replace(error, status=status), model, relay.path))
            relay.succeed()
