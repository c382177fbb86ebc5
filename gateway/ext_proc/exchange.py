"""One HTTP request behind Envoy, from the first message of its ext_proc stream to its end.

A stream must not be ended before the exchange is over: bodies that pass through it in full duplex would be lost. A
request is settled when its response has ended, by whatever shows that first: the response's own end, Envoy's access
log, or the end of the stream. A second filter may show the response without waiting for anything (`ResponseObserver`);
it is joined to the exchange by the request id that the exchange has set, which a client cannot forge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from gateway.config.limits import Limits, Timeouts
from gateway.ext_proc import messages
from gateway.ext_proc.access_log import AccessLog, TerminationCause
from gateway.ext_proc.carrier import EndpointPick, ExtProcTransport, ExtProcTransportConfig
from gateway.ext_proc.http2.stream import GrpcStream, GrpcStreamHandler
from gateway.ext_proc.listener import StreamCounter
from gateway.ext_proc.messages import LARGE_BYTES, RECEIVED_REQUEST_BODY, split_large_body
from gateway.ext_proc.messages_pb2 import HeaderMap, ProcessingRequest
from gateway.ext_proc.protocol import (
    BUFFERED,
    BUFFERED_PARTIAL,
    DEFAULT_MODES,
    FULL_DUPLEX,
    NONE,
    REQUEST_ID,
    BodyModes,
    ResponseVisibility,
    endpoint_of,
    engine_at,
    modes_of,
    served_by,
    source_of,
    subset_of,
)
from gateway.ext_proc.response import ExtProcResponseWriter, ResponseSide, head_of
from gateway.ext_proc.returned import TICKET, ReturnedRequests
from gateway.http.client_request import BodyBudget, IncomingRequest, body_memory_exhausted, body_too_large
from gateway.pipeline.attempt import AttemptStatus
from gateway.relay.relay import Relay
from gateway.server.dispatcher import HttpDispatcher
from routing.decision.placement import Placement
from routing.fleet import Fleet
from routing.reading import ParsedRequest
from routing.rejection import Reason, RequestRejected


@dataclass(frozen=True, slots=True)
class ExchangeConfig:
    """Settings of all exchanges."""

    limits: Limits
    timeouts: Timeouts
    queue_s: float
    """Maximum wait for an engine, in seconds."""
    sample_share: float
    """Share of responses to observe that would not be seen."""
    is_trusted_proxy: Callable[[str], bool]
    """Whether a client address is a trusted proxy."""


class ExtProcContext:
    """One per gateway process."""

    def __init__(
        self,
        http_dispatcher: HttpDispatcher,
        fleet: Fleet,
        means: ExtProcTransportConfig,
        *,
        rules: ExchangeConfig,
        budget: BodyBudget,
        pass_over: Callable[[str], object],
        clock: Callable[[], float],
        draw: Callable[[], float],
    ) -> None:
        """`pass_over` is called with the URL of a pod that Envoy could not reach."""
        self.http_dispatcher = http_dispatcher
        self.fleet = fleet
        self.means = means
        self.budget = budget
        self.rules = rules
        self.note_passed_over = pass_over
        self.returns: ReturnedRequests | None = None
        """How requests are served over the gateway's own connections; None where none is."""
        self.clock = clock
        self.stream_counter = stream_counter = StreamCounter(rules.limits.max_connections)
        self.log = AccessLog(lambda: stream_counter.count > 0)
        self.default_modes = DEFAULT_MODES
        self._draw = draw
        self._kept: Mapping[str, bytes] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._under_way: set[Exchange] = set()

    def __repr__(self) -> str:
        return f"<ExtProcContext with {self.stream_counter.count} exchanges>"

    def kept_headers(self) -> Mapping[str, bytes]:
        """Return the headers that matter here, by their names as Envoy writes them."""
        if len(self._kept) != len(self.http_dispatcher.kept_headers):
            self._kept = {name.decode("latin-1"): name for name in self.http_dispatcher.kept_headers}
        return self._kept

    def should_sample(self) -> bool:
        """Draw whether to observe a response that would not be seen."""
        return self.rules.sample_share > 0 and self._draw() < self.rules.sample_share

    def enter(self, exchange: Exchange) -> None:
        self.stream_counter.count += 1
        self._under_way.add(exchange)

    def leave(self, exchange: Exchange) -> None:
        if exchange in self._under_way:
            self._under_way.discard(exchange)
            self.stream_counter.count -= 1
            if exchange.reply is not None:
                self._exchanges.pop(exchange.reply.request_id, None)

    def open_exchanges(self) -> tuple[Exchange, ...]:
        return tuple(self._under_way)

    def expect_observer(self, exchange: Exchange) -> None:
        """Register an exchange whose request goes to a pod: a second filter may show its response."""
        if exchange.reply is not None:
            self._exchanges[exchange.reply.request_id] = exchange

    def find(self, request_id: str) -> Exchange | None:
        """Return the exchange whose request was sent to a pod under this id."""
        return self._exchanges.get(request_id)


INVALID_ARGUMENT = 3

OWN_RESPONSE_HEADERS = frozenset(("x-hearth-request-id", "x-hearth-reason"))
"""Response headers, one of which is on every response to an inference request and every rejection of this gateway."""

STATUS_BY_CAUSE = {
    TerminationCause.POD_LOST: (
        AttemptStatus.CONNECTION_RESET,
        "The pod's connection closed before the response was complete.",
    ),
    TerminationCause.POD_UNREACHABLE: (AttemptStatus.UNREACHABLE, "Envoy could not reach the pod."),
    TerminationCause.POD_TIMEOUT: (AttemptStatus.TIMEOUT, "Timeout while Envoy waited for the pod."),
}


class Exchange(GrpcStreamHandler):
    """One request and its response. Serves its stream."""

    __slots__ = (
        *("_chunks", "_has_all", "_has_picked", "_has_trailers", "_is_over", "_modes", "_office"),
        *("_since_s", "_stream", "answer", "asked", "is_observed", "reply"),
    )

    def __init__(self, office: ExtProcContext, stream: GrpcStream) -> None:
        self._office = office
        self._stream = stream
        self._modes: BodyModes = office.default_modes
        self.answer = ResponseSide(stream, office.should_sample, self._end)
        self._since_s = office.clock()
        self._chunks = 0
        """Chunks of a streamed body, each of which needs a response of its own."""
        self._has_all = self._has_trailers = self._has_picked = self._is_over = False
        self.is_observed = False
        """A second filter shows its response, and will show its end."""
        self.asked: IncomingRequest | None = None
        self.reply: ExtProcResponseWriter | None = None
        office.enter(self)

    def __repr__(self) -> str:
        return f"<Exchange of {self.asked}, {self._modes}>"

    # -- handling of the stream -------------------------------------------------------------------------------------

    def on_message(self, message: bytes) -> None:
        if len(message) >= LARGE_BYTES and self.asked is not None and (found := split_large_body(message)) is not None:
            phase, piece, ends = found
            (self._take_body if phase == RECEIVED_REQUEST_BODY else self.answer.on_body)(piece, ends=ends)
            return
        try:
            told = ProcessingRequest.FromString(message)
        except DecodeError:
            self._stream.finish(INVALID_ARGUMENT, "This is no ProcessingRequest.")
            self._end()
            return
        kind = told.WhichOneof("request")
        if kind == "request_headers":
            self._take_head(told)
        elif self.asked is None:
            self._stream.finish(INVALID_ARGUMENT, "The first message must be of request headers.")
            self._end()
        elif kind == "request_body":
            self._take_body(told.request_body.body, ends=told.request_body.end_of_stream)
        elif kind == "response_headers":
            self._take_answer_head(told)
        elif kind == "response_body":
            self.answer.on_body(told.response_body.body, ends=told.response_body.end_of_stream)
        elif kind == "request_trailers":
            self._has_trailers = True
            self._serve()
        elif kind == "response_trailers":
            self.answer.on_trailers()

    def on_end(self) -> None:
        self._end()
        self._stream.finish()

    def on_lost(self) -> None:
        self._end()

    def on_too_large(self) -> None:
        limits, asked = self._office.rules.limits, self.asked
        is_long = asked is not None and self._office.budget.has_room(limits.max_body_bytes)
        self._reject(body_too_large(limits) if is_long else body_memory_exhausted())

    def on_tick(self, now_s: float) -> None:
        """Reject a client that sends too slowly, and a request that has waited too long in the queue."""
        office, waited_s = self._office, now_s - self._since_s
        if self._has_picked or self._is_over:
            return
        if self._has_all and waited_s > office.rules.queue_s:
            self._reject(
                RequestRejected(
                    Reason.QUEUE_TIMEOUT, "No engine became available within the queue timeout.", retry_after_s=1.0
                )
            )
        elif not self._has_all and waited_s > office.rules.timeouts.request_body_s:
            self._reject(RequestRejected(Reason.REQUEST_TIMEOUT, "Timeout while receiving the request body."))

    # -- the request -----------------------------------------------------------------------------------------------

    def _take_head(self, told: ProcessingRequest) -> None:
        office = self._office
        if told.observability_mode:
            self._stream.handler = ResponseObserver(self._stream, office.find(request_id_of(told)))
            self._leave()
            return
        if self.asked is not None:
            return
        if told.HasField("protocol_config"):
            self._modes = modes_of(told.protocol_config)
        self.answer.visible = visible = self._modes.visibility
        self.asked = asked = IncomingRequest()
        self._read_head(asked, told.request_headers.headers)
        asked.may_add_usage = visible is ResponseVisibility.FULL
        self.reply = self.answer.reply = ExtProcResponseWriter(asked, office.http_dispatcher.new_id(), self.answer)
        if told.HasField("metadata_context"):
            asked.pod_subset = subset_of(told, office.fleet.pods)
        try:
            if not asked.target.startswith(b"/"):
                # Absolute form: Envoy would forward it as it stands, and only our own proxy reads a path out of it.
                raise RequestRejected(Reason.UNKNOWN_PATH, f"Unknown path {asked.target[:200]!r}.")
            office.http_dispatcher.route(asked, is_trusted=office.rules.is_trusted_proxy(source_of(told)))
        except RequestRejected as rejection:
            asked.rejection = rejection
        if asked.rejection is not None or told.request_headers.end_of_stream:
            self._serve()
        elif self._modes.answers_headers_first:
            self._stream.send(messages.REQUEST_HEADERS_CONTINUE)
        elif self._modes.request == NONE:
            asked.rejection = RequestRejected(
                Reason.GATEWAY_ERROR,
                "Envoy does not send request bodies to the gateway; set request_body_mode in its ext_proc filter.",
            )
            self._serve()

    def _read_head(self, asked: IncomingRequest, told: HeaderMap) -> None:
        kept, headers = self._office.kept_headers(), asked.headers
        for header in told.headers:
            name = header.key
            if name == ":path":
                asked.target = header.raw_value or header.value.encode()
            elif name == ":method":
                asked.method = (header.raw_value or header.value.encode()).decode("latin-1")
            elif name == "content-length":
                asked.declared_bytes = 0
            elif (ours := kept.get(name)) is not None:
                value = header.raw_value or header.value.encode()
                headers[ours] = headers[ours] + b", " + value if ours in headers else value

    def _take_body(self, piece: bytes, *, ends: bool) -> None:
        asked = self.asked
        if asked is None or self._has_all:
            return
        self._chunks += 1
        try:
            asked.add_body(piece, self._office.budget, self._office.rules.limits)
        except RequestRejected as rejection:
            self._reject(rejection)
            return
        if ends:
            self._serve()
        elif self._modes.request == BUFFERED_PARTIAL:
            self._reject(body_too_large(self._office.rules.limits))

    def _serve(self) -> None:
        """Dispatch the request once it is complete, or rejected."""
        if self._has_all or self.asked is None or self.reply is None:
            return
        self._has_all = True
        self._since_s = self._office.clock()
        self._office.http_dispatcher.serve(
            self.asked,
            self.reply,
            frontend=self._modes.frontend,
            make_transport=self._carrier,
            hand_over=None if self._office.returns is None else self._hand_over,
        )

    def _reject(self, rejection: RequestRejected) -> None:
        """Reject the request, which may already be queued."""
        asked, reply = self.asked, self.reply
        if asked is None or reply is None:
            self._stream.finish(INVALID_ARGUMENT, rejection.message)
            self._end()
        elif reply.task is None:
            asked.rejection = rejection
            self._serve()
        else:
            reply.reject(rejection)
            reply.task.cancel(rejection)

    def reject_pending(self, rejection: RequestRejected) -> None:
        """Reject the request if it was not sent to a pod yet."""
        if not self._has_picked and not self._is_over:
            self._reject(rejection)

    # -- destination ---------------------------------------------------------------------------------------------

    def _carrier(self, path: str, body: bytes, usage_added: bool) -> ExtProcTransport:  # noqa: FBT001 - as asked for
        asked, reply, office = self.asked, self.reply, self._office
        assert asked is not None  # noqa: S101 - a transport needs a request
        assert reply is not None  # noqa: S101
        return ExtProcTransport(
            self.answer,
            self._send_pick,
            asked,
            reply,
            office.means,
            path=path,
            body=body,
            usage_added=usage_added,
            body_needed_no_more=lambda: asked.drop_body(office.budget),
        )

    def _hand_over(self, reading: ParsedRequest) -> bool:
        """Have Envoy return a request to this process, if it needs that. Returns whether it does."""
        returns, asked = self._office.returns, self.asked
        if returns is None or asked is None or not returns.rule.applies(asked.caller, reading):
            return False
        ticket = returns.tickets.issue(asked, self._modes.frontend)
        self.answer.is_returned = True
        self._send(EndpointPick(returns.endpoint(self._stream.wire.local_host), [(TICKET, ticket)], asked.body()))
        asked.drop_body(self._office.budget)
        return True

    def _send_pick(self, pick: EndpointPick, relay: Relay) -> None:
        self.answer.relay = relay
        self._send(pick)

    def _send(self, pick: EndpointPick) -> None:
        if self._has_picked or self._is_over:
            return
        self._has_picked = True
        self._office.expect_observer(self)
        asked, send = self.asked, self._stream.send
        if asked is None:
            return
        is_new = pick.body != asked.body()
        if self._modes.request in (BUFFERED, BUFFERED_PARTIAL) and self._chunks:
            send(messages.pick_by_body(pick.endpoints, pick.fields, pick.body if is_new else None))
            return
        length = len(pick.body) if is_new and asked.declared_bytes is not None else None
        send(messages.pick_by_headers(pick.endpoints, pick.fields, length=length))
        if not self._chunks:
            return
        if self._modes.request == FULL_DUPLEX:
            for piece in messages.request_chunks(pick.body, ends=not self._has_trailers):
                send(piece)
        else:
            send(messages.chunk_replacement(pick.body if is_new else None))
            for _ in range(self._chunks - 1):
                send(messages.chunk_replacement(b"" if is_new else None))
        if self._has_trailers:
            send(messages.REQUEST_TRAILERS_CONTINUE)

    # -- the response ------------------------------------------------------------------------------------------------

    def _take_answer_head(self, told: ProcessingRequest) -> None:
        relay, endpoint = self.answer.relay, served_by(told)
        if self.answer.is_returned and not any(
            header.key in OWN_RESPONSE_HEADERS for header in told.response_headers.headers.headers
        ):
            self._reject_misrouted(endpoint)
            return
        if relay is not None and endpoint and endpoint != endpoint_of(relay.placement.engine.pod):
            self._note_served(relay, endpoint)
        self.answer.on_headers(head_of(told.response_headers.headers), ends=told.response_headers.end_of_stream)

    def _reject_misrouted(self, endpoint: str) -> None:
        """Reject a request to be returned here that Envoy has sent to a pod, which cannot serve it."""
        if self.reply is not None:
            served = endpoint or "another endpoint"
            words = f"Envoy sent this request to {served} instead of the gateway's return listener: use a cluster of"
            words += " type ORIGINAL_DST, or add the listener to the cluster's endpoints."
            self.reply.reject(RequestRejected(Reason.GATEWAY_ERROR, words))

    def _note_served(self, relay: Relay, endpoint: str) -> None:
        """Move the charge to the endpoint that served the request, as the first of the list has failed."""
        office, placement = self._office, relay.placement
        first = placement.engine
        office.note_passed_over(first.pod)
        relay.detail = f"{first.pod} failed, and Envoy had it served by {endpoint}."
        engine = engine_at(office.fleet.pods, endpoint, rank=first.rank)
        if engine is not None and isinstance(placement, Placement):
            placement.move(engine, office.clock())

    # -- the end ---------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Settle after the end of the stream, or leave that to Envoy's access log."""
        if self._is_over:
            return
        self._is_over = True
        self.answer.close()
        asked, reply = self.asked, self.reply
        if asked is not None:
            asked.drop_body(self._office.budget)
        if reply is not None and self.answer.is_under_way:
            if not self.is_observed:
                self._office.log.wait_for_cause(reply.request_id, self.settle_unseen)
        elif reply is not None and self.answer.relay is None:
            reply.abandon()
        self._leave()

    def on_observer_end(self) -> None:
        """Settle after the end of the observer, if the stream has ended as well."""
        self.is_observed = False
        if self._is_over and self.reply is not None and self.answer.is_under_way:
            self._office.log.wait_for_cause(self.reply.request_id, self.settle_unseen)

    def settle_unseen(self, word: TerminationCause | None) -> None:
        """Settle a response whose end was not seen: as Envoy's log says, or as it looks (None)."""
        relay, reply, answer = self.answer.relay, self.reply, self.answer
        if relay is None or reply is None or not answer.is_under_way:
            return
        if word in STATUS_BY_CAUSE:
            relay.fail(*STATUS_BY_CAUSE[word])
        elif (
            word is not TerminationCause.CLIENT_GONE
            and not answer.is_seen
            and answer.visible is ResponseVisibility.HEADERS_ONLY
        ):
            if answer.has_received_head or word is TerminationCause.SERVED:
                relay.succeed()
                return
            reply.abandon()
        else:
            reply.abandon()

    def _leave(self) -> None:
        task = self.reply.task if self.reply is not None else None
        if task is None or task.done():
            self._part()
        else:
            task.add_done_callback(lambda _: self._part())

    def _part(self) -> None:
        """Drop all references once nothing of it is running."""
        self._office.leave(self)
        self.answer.detach()
        if self.reply is not None:
            self.reply.task = None


class ResponseObserver(GrpcStreamHandler):
    """One observed response. Envoy ignores replies on its stream, so it sends none."""

    __slots__ = ("_exchange", "_stream")

    def __init__(self, stream: GrpcStream, exchange: Exchange | None) -> None:
        self._stream = stream
        self._exchange = exchange
        if exchange is not None:
            exchange.is_observed = True

    def on_message(self, message: bytes) -> None:
        if self._exchange is None:
            return
        try:
            told = ProcessingRequest.FromString(message)
        except DecodeError:
            return
        answer = self._exchange.answer
        kind = told.WhichOneof("request")
        if kind == "response_headers":
            answer.observe(head_of(told.response_headers.headers))
            if told.response_headers.end_of_stream:
                answer.on_end()
        elif kind == "response_body":
            answer.feed(told.response_body.body, ends=told.response_body.end_of_stream)
        elif kind == "response_trailers":
            answer.on_end()

    def on_end(self) -> None:
        self._stop()
        self._stream.finish()

    def on_lost(self) -> None:
        self._stop()

    def on_too_large(self) -> None:
        self._stop()
        self._stream.finish()

    def _stop(self) -> None:
        """End observing: the end of this stream, not that of the exchange, is the end of what is seen."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.on_observer_end()


def request_id_of(told: ProcessingRequest) -> str:
    """Return the id that a request carries, empty if none."""
    said = (header for header in told.request_headers.headers.headers if header.key == REQUEST_ID)
    header = next(said, None)
    return "" if header is None else header.raw_value.decode("latin-1") or header.value
