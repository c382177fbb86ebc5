"""One HTTP request behind Envoy, from the first message of its stream to its end: what comes is told on, in order.

A stream must not be ended before the exchange is over: bodies that pass through it in full duplex would be lost. What a
request took is settled when its answer has ended, by whatever shows that first: the answer's own end, Envoy's access
log, or the end of the stream.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from gateway.ext_proc import responses as telling
from gateway.ext_proc.access_log import Word
from gateway.ext_proc.endpoints import endpoint_of, engine_at, served_by, source_of, subset_of
from gateway.ext_proc.http2.stream import Stream
from gateway.ext_proc.large_body import LARGE_BYTES, REQUEST_BODY, large_body
from gateway.ext_proc.messages_pb2 import HeaderMap, ProcessingRequest
from gateway.ext_proc.modes import BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX, NONE, Modes, Sight, modes_of
from gateway.ext_proc.observer import Observer, request_id_of
from gateway.ext_proc.response_side import AnswerSide, head_of
from gateway.ext_proc.response_writer import EnvoyReply
from gateway.ext_proc.shared import Office
from gateway.ext_proc.transport import EnvoyCarrier, Pick
from gateway.http.client_request import Asked, body_too_large, too_many_bodies
from gateway.http.endpoints import Endpoint
from gateway.pipeline.attempt import LegEnd
from gateway.relay.relay import Relay
from routing.decision.placement import Placement
from routing.rejection import Reason, Refused

INVALID_ARGUMENT = 3

ENDS_BY_WORD = {
    Word.POD_LOST: (LegEnd.LOST, "The pod's connection ended inside its answer."),
    Word.POD_UNREACHABLE: (LegEnd.UNREACHABLE, "Envoy could not reach the pod."),
    Word.POD_TIMEOUT: (LegEnd.TIMEOUT, "Envoy waited too long for the pod."),
}


class Exchange:
    """One request. A `Taker` of its stream, and the `Envoy` of its carrier."""

    __slots__ = (
        *("_answer", "_chunks", "_has_all", "_has_picked", "_has_trailers", "_is_over", "_modes", "_office"),
        *("_since_s", "_stream", "asked", "is_observed", "reply"),
    )

    def __init__(self, office: Office, stream: Stream) -> None:
        self._office = office
        self._stream = stream
        self._modes: Modes = office.usual_modes
        self._answer = AnswerSide(stream, office.wants_sample, self._end)
        self._since_s = office.clock()
        self._chunks = 0
        """Pieces of a streamed body, each of which wants an answer of its own."""
        self._has_all = self._has_trailers = self._has_picked = self._is_over = False
        self.is_observed = False
        """Another filter shows us its answer, and will show its end."""
        self.asked: Asked | None = None
        self.reply: EnvoyReply | None = None
        office.enter(self)

    def __repr__(self) -> str:
        return f"<Exchange of {self.asked}, {self._modes}>"

    # -- what the stream tells -------------------------------------------------------------------------------------

    def take(self, message: bytes) -> None:
        if len(message) >= LARGE_BYTES and self.asked is not None and (found := large_body(message)) is not None:
            phase, piece, ends = found
            (self._take_body if phase == REQUEST_BODY else self._answer.take_body)(piece, ends=ends)
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
            self._answer.take_body(told.response_body.body, ends=told.response_body.end_of_stream)
        elif kind == "request_trailers":
            self._has_trailers = True
            self._serve()
        elif kind == "response_trailers":
            self._answer.take_trailers()

    def ended(self) -> None:
        self._end()
        self._stream.finish()

    def lost(self) -> None:
        self._end()

    def overfull(self) -> None:
        limits, asked = self._office.rules.limits, self.asked
        is_long = asked is not None and self._office.budget.has_room(limits.max_body_bytes)
        self._refuse(body_too_large(limits) if is_long else too_many_bodies())

    def check(self, now_s: float) -> None:
        """A client that sends too slowly, and a wait in the queue that has been long enough."""
        office, waited_s = self._office, now_s - self._since_s
        if self._has_picked or self._is_over:
            return
        if self._has_all and waited_s > office.rules.queue_s:
            self._refuse(Refused(Reason.QUEUE_TIMEOUT, "No engine was free in time.", retry_after_s=1.0))
        elif not self._has_all and waited_s > office.rules.timeouts.body_s:
            self._refuse(Refused(Reason.REQUEST_TOO_SLOW, "The body of the request took too long."))

    def leave(self) -> None:
        """It ends with its answer."""

    # -- the request -----------------------------------------------------------------------------------------------

    def _take_head(self, told: ProcessingRequest) -> None:
        office = self._office
        if told.observability_mode:
            self._stream.taker = Observer(self._stream, office.find(request_id_of(told)))
            self._leave()
            return
        if self.asked is not None:
            return
        if told.HasField("protocol_config"):
            self._modes = modes_of(told.protocol_config)
        self._answer.sight = sight = self._modes.sight
        self.asked = asked = Asked()
        self._read_head(asked, told.request_headers.headers)
        asked.may_add_usage = sight is Sight.FULL
        self.reply = self._answer.reply = reply = EnvoyReply(asked, office.new_id(), self._answer)
        reply.shell = self._modes.shell
        reply.make_carrier = self._carrier
        if told.HasField("metadata_context"):
            asked.pods = subset_of(told, office.fleet.pods)
        try:
            if not asked.target.startswith(b"/"):
                # Absolute form: Envoy would forward it as it stands, and only our own proxy reads a path out of it.
                raise Refused(Reason.UNKNOWN_PATH, f"There is nothing at {asked.target[:200]!r}.")
            office.desk.route(asked, is_trusted=office.rules.trusts(source_of(told)))
        except Refused as refusal:
            asked.refusal = refusal
        if asked.refusal is not None or told.request_headers.end_of_stream:
            self._serve()
        elif self._modes.answers_headers_first:
            self._stream.send(telling.REQUEST_HEADERS_GO_ON)
        elif self._modes.request == NONE:
            asked.refusal = Refused(Reason.GATEWAY_ERROR, "Envoy does not show the body of requests: set a body mode.")
            self._serve()

    def _read_head(self, asked: Asked, told: HeaderMap) -> None:
        kept, headers = self._office.kept(), asked.headers
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
        except Refused as refusal:
            self._refuse(refusal)
            return
        if ends:
            self._serve()
        elif self._modes.request == BUFFERED_PARTIAL:
            self._refuse(body_too_large(self._office.rules.limits))

    def _serve(self) -> None:
        """All of it has come, or as much as there is need of."""
        if self._has_all or self.asked is None or self.reply is None:
            return
        self._has_all = True
        self._since_s = self._office.clock()
        self._office.desk.serve(self.asked, self.reply)

    def _refuse(self, refusal: Refused) -> None:
        """Say no to what may be on its way already."""
        asked, reply = self.asked, self.reply
        if asked is None or reply is None:
            self._stream.finish(INVALID_ARGUMENT, refusal.message)
            self._end()
        elif reply.task is None:
            asked.refusal = refusal
            self._serve()
        else:
            reply.refuse(refusal)
            reply.task.cancel(refusal)

    def cut(self, refusal: Refused) -> None:
        """End now, with a word where one can still be said."""
        if not self._has_picked and not self._is_over:
            self._refuse(refusal)

    # -- where it goes ---------------------------------------------------------------------------------------------

    def _carrier(self, endpoint: Endpoint, body: bytes, usage_added: bool) -> EnvoyCarrier:  # noqa: FBT001 - as asked for
        asked, reply, office = self.asked, self.reply, self._office
        assert asked is not None  # noqa: S101 - there is no carrier without a request
        assert reply is not None  # noqa: S101
        return EnvoyCarrier(
            self,
            asked.target,
            reply,
            office.means,
            path=endpoint.path,
            body=body,
            usage_added=usage_added,
            body_needed_no_more=lambda: asked.drop_body(office.budget),
        )

    @property
    def sight(self) -> Sight:
        return self._answer.sight

    @property
    def events(self) -> int:
        return self._answer.events

    @property
    def has_heard_answer(self) -> bool:
        return self._answer.has_heard_head

    def send_pick(self, pick: Pick, relay: Relay) -> None:
        self._answer.relay = relay
        if self._has_picked or self._is_over:
            return
        self._has_picked = True
        self._office.expect_observer(self)
        asked, send = self.asked, self._stream.send
        if asked is None:
            return
        is_new = pick.body != asked.body()
        if self._modes.request in (BUFFERED, BUFFERED_PARTIAL) and self._chunks:
            send(telling.pick_by_body(pick.endpoints, pick.fields, pick.body if is_new else None))
            return
        length = len(pick.body) if is_new and asked.declared_bytes is not None else None
        send(telling.pick_by_headers(pick.endpoints, pick.fields, length=length))
        if not self._chunks:
            return
        if self._modes.request == FULL_DUPLEX:
            for piece in telling.request_pieces(pick.body, ends=not self._has_trailers):
                send(piece)
        else:
            send(telling.replaced_piece(pick.body if is_new else None))
            for _ in range(self._chunks - 1):
                send(telling.replaced_piece(b"" if is_new else None))
        if self._has_trailers:
            send(telling.REQUEST_TRAILERS_GO_ON)

    # -- the answer ------------------------------------------------------------------------------------------------

    def _take_answer_head(self, told: ProcessingRequest) -> None:
        relay, endpoint = self._answer.relay, served_by(told)
        if relay is not None and endpoint and endpoint != endpoint_of(relay.placement.engine.pod):
            self._note_served(relay, endpoint)
        self._answer.take_head(head_of(told.response_headers.headers), ends=told.response_headers.end_of_stream)

    def _note_served(self, relay: Relay, endpoint: str) -> None:
        """Another of the list than the first has served it: it is charged there, and the first has failed."""
        office, placement = self._office, relay.placement
        first = placement.engine
        office.note_passed_over(first.pod)
        relay.detail = f"{first.pod} failed, and Envoy had it served by {endpoint}."
        engine = engine_at(office.fleet.pods, endpoint, rank=first.rank)
        if engine is not None and isinstance(placement, Placement):
            placement.moved(engine, office.clock())

    @property
    def answer(self) -> AnswerSide:
        return self._answer

    # -- the end ---------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """The stream is over; the answer may have ended before, and how it ended may be told a moment later."""
        if self._is_over:
            return
        self._is_over = True
        self._answer.close()
        asked, reply = self.asked, self.reply
        if asked is not None:
            asked.drop_body(self._office.budget)
        if reply is not None and self._answer.is_under_way:
            if not self.is_observed:
                self._office.log.ask(reply.request_id, self.conclude)
        elif reply is not None and self._answer.relay is None:
            reply.abandon()
        self._leave()

    def observed_no_more(self) -> None:
        """Nobody shows its answer any more: if its own stream has ended as well, that was all."""
        self.is_observed = False
        if self._is_over and self.reply is not None and self._answer.is_under_way:
            self._office.log.ask(self.reply.request_id, self.conclude)

    def conclude(self, word: Word | None) -> None:
        """The answer's end was not seen: it ended as Envoy says, or as it looks."""
        relay, reply, answer = self._answer.relay, self.reply, self._answer
        if relay is None or reply is None or not answer.is_under_way:
            return
        if word in ENDS_BY_WORD:
            relay.fail(*ENDS_BY_WORD[word])
        elif word is not Word.CLIENT_GONE and not answer.is_seen and answer.sight is Sight.BLIND:
            if answer.has_heard_head or word is Word.SERVED:
                relay.answered()
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
        """Nothing of it is under way any more."""
        self._office.leave(self)
        self._answer.part()
        if self.reply is not None:
            self.reply.make_carrier = self.reply.task = None
