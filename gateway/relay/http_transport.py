"""The transport of one downstream request over the gateway's own connections, attempt after attempt.

`UpstreamRequestWriter` writes the request as a pod is sent it: its head, and fields added to the client's body.

An attempt leases a connection, sends the request and relays the response (`relay.py`). The body is held until a
response begins, and that of a stream until it ends (`RetryBuffer`). If a pod is lost, another one is sent the same
request before the first byte of the response, and a continuation (`resumption.py`) behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from cascade.judging import AnswerJudge
from cascade.logprobs import LogprobFilter
from gateway.config.limits import Limits
from gateway.http.client_request import BodyBudget, IncomingRequest
from gateway.http.endpoints import ApiEndpoint
from gateway.http.response_writer import ResponseWriter
from gateway.limits.accounts import RequestMeter
from gateway.pipeline.attempt import AttemptResult, AttemptStatus, PrefillRequest, PrefillResult, ResumeBlocker
from gateway.pipeline.transport import PinnedRequest
from gateway.relay.holdback import HoldbackRelay
from gateway.relay.relay import PREFILL_ONLY, PlacedAttempt, Relay, RelayOptions
from gateway.relay.resumption import (
    ResumedRelay,
    continuation_after,
    cut_result,
    failed_prefill,
    recover_tokens,
    with_prompt_ids,
)
from gateway.relay.unary import call_prefill
from gateway.relay.upstream_pool import PoolIsFull, UpstreamAddress, UpstreamPool, no_connection
from gateway.resume.continuation import Continuation
from gateway.runtime.trace_context import MAX_TRACE_BYTES, SpanRole
from routing.decision.placement import Placement
from routing.fleet import Fleet
from routing.pods import Engine
from routing.reading import with_fields
from routing.reading.rewriting import prefill_body, with_output_limit
from routing.rejection import RequestRejected
from routing.request import GENERATING, Api, Request
from routing.stall_detection import StallDetector, StreamWatch

TakesPriority = Callable[[str], bool]
"""Whether the pod at a URL schedules by priority."""

APIS_WITH_PRIORITY = frozenset(set(Api) - {Api.MESSAGES, Api.TOKENIZE, Api.DETOKENIZE})
"""APIs with a field `priority`. vLLM 0.32 has none in Anthropic's; a header says it there, which older ones ignore."""

DOWNGRADED_HEADER = "x-hearth-downgraded-from"
CASCADE_MODEL_HEADER = "x-hearth-cascade-model"
"""Response header: the model of a cascade that has answered."""

MAX_TOKENS_HEADER = "x-hearth-max-tokens"
"""Response header: tokens that the answer may have, where limits allow less than the client."""

TRACE_HEADERS = (b"traceparent", b"tracestate")


@dataclass(slots=True)
class PodKeys:
    """The API key that all pods require; None where they require none. A reload replaces it."""

    key: str | None

    def __call__(self, url: str) -> str | None:
        return self.key


class UpstreamRequestWriter:
    """Writes the requests that one gateway sends to pods."""

    def __init__(self, pool: UpstreamPool, keys: PodKeys, takes_priority: TakesPriority) -> None:
        self._pool = pool
        self._keys = keys
        self._takes_priority = takes_priority
        self._outside: ProviderRoute | None = None

    def exclude(self, outside: ProviderRoute) -> None:
        """Write no request to the endpoints of a route outside the fleet."""
        self._outside = outside

    def write(
        self,
        asked: IncomingRequest,
        engine: Engine,
        request: Request,
        *,
        path: str,
        body: bytes,
        request_id: str,
        role: SpanRole = SpanRole.ATTEMPT,
    ) -> list[bytes]:
        """Return head and body of a request to this engine. Of the client's headers only its trace gets through.

        `role`: the span of the attempt that is the parent of the pod's, with `tracing`.
        """
        pod = engine.pod
        if self._outside is not None and self._outside.serves(pod):
            raise RuntimeError(f"{pod} is outside the fleet: only a permit of the gate sends anything there")
        address = self._pool.address(pod)
        # Only where it is honoured: elsewhere it may be an error. Higher goes first here, lower there.
        priority = -request.priority if request.priority and self._takes_priority(pod) else 0
        header = ""
        if priority and request.api in APIS_WITH_PRIORITY:
            body = with_fields(body, b'"priority":%d' % priority)
        elif priority and request.api is Api.MESSAGES:
            header = f"x-vllm-priority: {priority}\r\n"
        if asked.trace is not None:
            header += asked.trace.line or asked.trace.header_lines(role)
        return [self._head(asked, address, engine, path, len(body), request_id, header), body]

    def _head(
        self,
        asked: IncomingRequest,
        address: UpstreamAddress,
        engine: Engine,
        path: str,
        length: int,
        request_id: str,
        more: str,
    ) -> bytes:
        head = (
            f"{asked.method} {address.base}{path} HTTP/1.1\r\nhost: {address.authority}\r\n"
            f"x-request-id: {request_id}\r\naccept: application/json, text/event-stream\r\n"
        )
        if length:
            head += f"content-type: application/json\r\ncontent-length: {length}\r\n"
        elif asked.method == "POST":
            head += "content-length: 0\r\n"
        key = self._keys.key
        if key is not None:
            head += f"authorization: Bearer {key}\r\n"
        if engine.rank is not None:
            head += f"x-data-parallel-rank: {engine.rank}\r\n"
        head += more
        for name in TRACE_HEADERS if asked.trace is None else ():
            value = asked.headers.get(name)
            if value and len(value) <= MAX_TRACE_BYTES:
                head += f"{name.decode()}: {value.decode('latin-1')}\r\n"
        return f"{head}\r\n".encode("latin-1")


def with_token_cap(request_meter: RequestMeter | None, body: bytes) -> bytes:
    """Return the body with its limits on the answer lowered to what the caller's accounts allow."""
    if request_meter is None or request_meter.max_tokens is None:
        return body
    return with_output_limit(request_meter.request.api, body, request_meter.max_tokens)


class ProviderRoute(Protocol):
    """Sends attempts at endpoints outside the fleet; no other code writes to them."""

    def serves(self, url: str) -> bool:
        """Return whether a URL is that of an endpoint outside the fleet."""
        ...

    async def run_attempt(
        self,
        incoming: IncomingRequest,
        reply: ResponseWriter,
        placement: PlacedAttempt,
        body: bytes,
        make_relay: Callable[[], Relay],
        first_byte_by_s: float,
        *,
        is_continuation: bool,
    ) -> AttemptResult:
        """Send one attempt and relay its response; see `AttemptTransport.run_attempt`."""
        ...


class TransportFactory:
    """Makes the transports of a gateway; `budget` is that of the bodies of all requests being read or placed."""

    def __init__(self, fleet: Fleet, pool: UpstreamPool, keys: PodKeys, budget: BodyBudget, limits: Limits) -> None:
        self._pool = pool
        self._requests = UpstreamRequestWriter(pool, keys, fleet.takes_priority)
        self._providers: ProviderRoute | None = None
        self._budget = budget
        self._limits = limits
        self.kept_bodies = BodyBudget(limits.max_total_replay_body_bytes, max_extra_bytes=limits.max_replay_body_bytes)
        """Of the bodies of requests whose responses stream, kept in case they have to be resumed."""

    def use_providers(self, route: ProviderRoute) -> None:
        """Send attempts at endpoints outside the fleet by this route; without one they fail."""
        self._providers = route
        self._requests.exclude(route)

    def make(
        self, endpoint: ApiEndpoint, asked: IncomingRequest, reply: ResponseWriter, body: bytes, *, usage_added: bool
    ) -> HttpTransport:
        """Return the transport of one request, which is sent with this body.

        `usage_added`: usage was requested on the client's behalf, and is withheld from it.
        """
        tenant = asked.caller.tenant
        buffer = RetryBuffer(self.kept_bodies, self._limits, is_off=not tenant.resumes, tenant=tenant.name)
        return HttpTransport(
            asked,
            reply,
            endpoint.path,
            body,
            usage_added=usage_added,
            pool=self._pool,
            requests=self._requests,
            buffer=buffer,
            budget=self._budget,
            providers=self._providers,
        )


class RetryBuffer:
    """The body of one request, kept while its response streams: if the pod is lost, the rest is requested with it.

    Bounded for each request and for all together. A request that finds no room streams as well, and cannot be resumed.
    """

    __slots__ = ("_budget", "_counted", "_limits", "_tenant", "answer_bytes", "body", "is_off")

    def __init__(self, budget: BodyBudget, limits: Limits, *, is_off: bool, tenant: str | None = None) -> None:
        """`budget` is that of all bodies that are kept; `is_off`: resuming is disabled, and nothing is kept."""
        self._tenant = tenant
        self._budget = budget
        self._limits = limits
        self._counted = 0
        self.answer_bytes = limits.max_recorded_response_bytes
        """Bytes of the response that are recorded."""
        self.is_off = is_off
        self.body = b""

    def keep(self, body: bytes) -> None:
        """Keep a body, if there is room."""
        size = len(body)
        is_kept = 0 < size <= self._limits.max_replay_body_bytes and not self.is_off
        if is_kept and self._budget.reserve(size, self._tenant):
            self._counted = size
            self.body = body

    def begin_attempt(self) -> None:
        """Charge the budget for what is kept, for as long as the attempt takes."""
        if self.body and not self._counted and self._budget.reserve(len(self.body), self._tenant):
            self._counted = len(self.body)

    def end_attempt(self) -> None:
        """Release the budget; the next attempt, if there is one, follows at once."""
        if self._counted:
            self._budget.release(self._counted, self._tenant)
            self._counted = 0


class HttpTransport:
    """Sends one downstream request to pods and relays the response."""

    def __init__(
        self,
        asked: IncomingRequest,
        reply: ResponseWriter,
        path: str,
        body: bytes,
        *,
        usage_added: bool,
        pool: UpstreamPool,
        requests: UpstreamRequestWriter,
        buffer: RetryBuffer,
        budget: BodyBudget,
        providers: ProviderRoute | None = None,
    ) -> None:
        """`budget` is charged for the body that `asked` holds, until a response has begun."""
        self._asked = asked
        self._reply = reply
        self._path = path
        self._body = body
        self._usage_added = usage_added
        self._pool = pool
        self._requests = requests
        self._buffer = buffer
        self._budget = budget
        self._providers = providers
        self._attempts = 0
        self._meter: RequestMeter | None = None
        self._judge: AnswerJudge | None = None
        self._trim: LogprobFilter | None = None
        """What was requested on a judge's behalf, and is taken out of the response."""
        self._rest: Continuation | None = None
        """What is left of a stream that was cut."""

    # -- called by the pipeline ------------------------------------------------------------------------------------

    @property
    def body(self) -> bytes:
        """The body that pods are sent; empty once a response has begun."""
        return self._body

    def downgrade(self, body: bytes, model: str) -> None:
        """Send another body from now on: a smaller model answers for `model`, which a response header says."""
        self._body = with_token_cap(self._meter, body)
        self._reply.headers += ((DOWNGRADED_HEADER, model),)

    def use_cascade_model(self, body: bytes, model: str, *, usage_added: bool) -> None:
        """Send the body for one model of a cascade from now on; a response header names the one that answers."""
        self._body, self._usage_added, self._trim = with_token_cap(self._meter, body), usage_added, None
        others = tuple(field for field in self._reply.headers if field[0] != CASCADE_MODEL_HEADER)
        self._reply.headers = (*others, (CASCADE_MODEL_HEADER, model))

    def open_meter(self, request_meter: RequestMeter) -> None:
        """Meter the request: its answer is capped, and a stream ended, where the caller's accounts say so."""
        self._meter = request_meter
        self._reply.headers += request_meter.headers()
        if request_meter.max_tokens is not None:
            self._body = with_token_cap(request_meter, self._body)
            self._reply.headers += ((MAX_TOKENS_HEADER, str(request_meter.max_tokens)),)

    def set_judge(self, judge: AnswerJudge | None) -> None:
        """Hold back what is carried next until `judge` has accepted it; None: hold nothing back."""
        self._judge = judge
        if judge is not None:
            self._trim = judge.logprob_filter

    def reject(self, rejection: RequestRejected) -> None:
        """Send the client our rejection."""
        self._reply.reject(rejection)

    async def run_attempt(self, placement: Placement | PinnedRequest, first_byte_by_s: float) -> AttemptResult:
        """Send one attempt and relay its response; see `AttemptTransport.run_attempt`."""
        self._attempts += 1
        if self._providers is not None and self._providers.serves(placement.engine.pod):
            return await self._run_at_provider(self._providers, placement, first_byte_by_s)
        if self._buffer.body:
            self._buffer.begin_attempt()
        rest = self._rest
        try:
            if rest is not None and (failed := await self._recover(rest, placement, placement.engine, first_byte_by_s)):
                return cut_result(failed, placement.request)
            relay = await self._send(placement, first_byte_by_s, fresh=False)
            if relay.was_stale:
                relay = await self._send(placement, first_byte_by_s, fresh=True)
        except (PoolIsFull, OSError) as error:
            end, detail = no_connection(placement.engine.pod, error)
            attempt_result = AttemptResult(end, detail=detail)
        else:
            attempt_result = relay.result()
            if relay.has_started and attempt_result.end is not AttemptStatus.OK:
                return self._cut(attempt_result, relay)
        finally:
            self._buffer.end_attempt()
        return (
            attempt_result
            if rest is None or attempt_result.end is AttemptStatus.OK
            else cut_result(attempt_result, placement.request)
        )

    async def _run_at_provider(
        self, route: ProviderRoute, placement: Placement | PinnedRequest, first_byte_by_s: float
    ) -> AttemptResult:
        """Send one attempt at an endpoint outside the fleet. What it has begun is not resumed."""
        result = await route.run_attempt(
            self._asked,
            self._reply,
            placement,
            self._body,
            lambda: self._relay(placement),
            first_byte_by_s,
            is_continuation=self._rest is not None,
        )
        if result.end is not AttemptStatus.OK and self._reply.has_started:
            return replace(result, started=True, resume_blocker=ResumeBlocker.PROVIDER)
        return result

    async def prefill(self, placement: Placement, order: PrefillRequest, by_s: float) -> PrefillResult:
        """Have the placement's prefill engine compute the prompt and keep its KV; see `AttemptTransport.prefill`."""
        side = placement.prefill
        assert side is not None  # noqa: S101 - the pipeline sends a prefill attempt of pairs only
        if self._rest is not None and (failed := await self._recover(self._rest, placement, side.engine, by_s)):
            return failed_prefill(failed)
        fields = order.fields if self._rest is None else with_prompt_ids(self._rest, order.fields)
        body = prefill_body(placement.request.api, self._body, fields, ends_by_length=order.ends_by_length)
        question = self._write(
            side.engine, placement.request, self._path, body, order.request_id, role=SpanRole.PREFILL
        )
        return await call_prefill(self._pool, side.engine.pod, question, by_s, placement.request.api)

    # -- one attempt -----------------------------------------------------------------------------------------------

    async def _send(self, placement: Placement | PinnedRequest, first_byte_by_s: float, *, fresh: bool) -> Relay:
        url, pool = placement.engine.pod, self._pool
        connection = (None if fresh else pool.lease_idle(url)) or await pool.connect(url)
        relay = self._relay(placement)
        # Not kept in a local: it holds the body, and this frame lives as long as the stream.
        stall_watch = stall_timer(pool.lateness, placement, pool.loop.time())
        let_go = placement.let_go if isinstance(placement, Placement) else None
        connection.send_request(relay, self._question(placement), first_byte_by_s, stall_watch, let_go)
        try:
            await relay.ended
        except BaseException:
            connection.abort()  # The client has disconnected.
            raise
        return relay

    def _relay(self, placement: Placement | PinnedRequest) -> Relay:
        meter = self._meter
        options: RelayOptions = {
            "loop": self._pool.loop,
            "withholds_usage": self._usage_added,
            "recorded_bytes": self._buffer.answer_bytes,
            "meter": meter if meter is not None and meter.is_watched else None,
            "on_begin": self._response_begun,
        }
        if self._rest is not None:
            return ResumedRelay(self._rest, self._trim, self._reply, placement, self._path, **options)
        if self._judge is not None:
            return HoldbackRelay(self._judge, self._reply, placement, self._path, **options)
        return Relay(self._reply, placement, self._path, **options)

    def _response_begun(self, is_stream: bool) -> None:  # noqa: FBT001 - called by the relay alone
        """Let go of the body: no other pod can begin an answer. That of a stream is kept to resume it."""
        if is_stream:
            self._buffer.keep(self._body)
        self._body = b""
        self._asked.drop_body(self._budget)

    def _question(self, placement: Placement | PinnedRequest) -> list[bytes]:
        body, handover = self._body, None if placement.prefill is None else placement.handover
        fields = handover.fields if handover is not None else b""
        if self._rest is not None:
            fields = with_prompt_ids(self._rest, fields)
        if fields:
            body = with_fields(body, b'"kv_transfer_params":%b' % fields)
        return self._requests.write(
            self._asked,
            placement.engine,
            placement.request,
            path=self._path,
            body=body,
            request_id=self._engine_id if handover is None else handover.request_id,
        )

    def _write(
        self,
        engine: Engine,
        request: Request,
        path: str,
        body: bytes,
        request_id: str,
        *,
        role: SpanRole = SpanRole.ATTEMPT,
    ) -> list[bytes]:
        return self._requests.write(
            self._asked, engine, request, path=path, body=body, request_id=request_id, role=role
        )

    @property
    def _engine_id(self) -> str:
        """Id of the attempt for the engine. Never the client's: engines match KV by it, and clients may repeat one."""
        request_id = self._reply.request_id
        return request_id if self._attempts == 1 else f"{request_id}-{self._attempts}"

    # -- a stream that was cut -------------------------------------------------------------------------------------

    def _cut(self, attempt_result: AttemptResult, relay: Relay) -> AttemptResult:
        """The client has part of the answer: prepare the request for the rest, or say why there is none."""
        rest = ResumeBlocker.DISABLED if self._buffer.is_off else continuation_after(relay, self._buffer.body)
        if isinstance(rest, ResumeBlocker):
            return replace(attempt_result, started=True, resume_blocker=rest)
        self._rest, self._body, self._path = rest, rest.request.body, rest.path
        return cut_result(attempt_result, relay.placement.request)

    async def _recover(
        self, rest: Continuation, placement: Placement | PinnedRequest, engine: Engine, by_s: float
    ) -> AttemptResult | None:
        """Have the rest known in token ids, where it has to be. Returns the attempt if that failed."""

        def write(path: str, body: bytes, suffix: str) -> list[bytes]:
            return self._write(engine, placement.request, path, body, f"{self._engine_id}{suffix}")

        recovered = await recover_tokens(self._pool, engine.pod, rest, write, by_s)
        if isinstance(recovered, AttemptResult):
            return recovered
        self._rest, self._body = recovered, recovered.request.body
        return None


COMPUTING = GENERATING | PREFILL_ONLY
"""APIs whose requests an engine computes."""


def stall_timer(lateness: StallDetector, placement: Placement | PinnedRequest, now_s: float) -> StreamWatch | None:
    """Return the stall timer of a request that is about to be sent; None where nothing was predicted of it.

    A whole generated answer has no byte before its last token, and a pair's decode engine none before it has the KV:
    their silence is no sign of a hang. They are failed where others show that the engine hangs.
    """
    request = placement.request
    if not isinstance(placement, Placement) or request.api not in COMPUTING:
        return None
    streams_tokens = placement.prefill is None and (request.stream or request.api in PREFILL_ONLY)
    expected_s = 0.0 if placement.prefill is not None else placement.predicted.ttft_s
    return lateness.watch(
        placement.engine.name,
        request.model,
        expected_s,
        now_s,
        streams_tokens=streams_tokens,
        holds_back=request.stream and request.holds_back,
    )
