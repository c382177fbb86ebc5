"""Dispatches each HTTP request by its endpoint: to the pipeline, to the pod that stores a response, or a local answer.

`route` decides by the head alone, before a body is read; `serve` answers the complete request. For inference that is:
read the body, check what the tenant may use, coalesce or supersede if asked for, then hand it to the pipeline in a task
of its own. Each request gets a response whatever fails, and each inference request an outcome.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from itertools import count
from typing import Any, Protocol

from msgspec.structs import replace

from gateway.cascades.cascade_run import CascadeRun
from gateway.cascades.cascades import Cascades
from gateway.cascades.constraints import CASCADE_HEADERS
from gateway.cascades.model_requests import CascadeModelRequests
from gateway.config.cors import CorsPolicy
from gateway.config.limits import Timeouts
from gateway.http.client_request import KEPT_HEADERS, IncomingRequest
from gateway.http.cors import CORS_HEADERS, is_allowed_origin, preflight_fields, response_fields
from gateway.http.endpoints import ENDPOINTS, ApiEndpoint, LocalEndpoint, find_endpoint
from gateway.http.request_headers import (
    LOCAL_ONLY_HEADER,
    SLO_HEADERS,
    api_key_of,
    client_request_id_of,
    is_local_only,
    model_override,
    requested_slo,
    retry_count,
    session_of,
)
from gateway.http.response_writer import ResponseWriter
from gateway.pipeline.attempt import AttemptResult, AttemptStatus
from gateway.pipeline.pipeline import RequestPipeline
from gateway.pipeline.record import HTTP, Frontend
from gateway.pipeline.transport import DownstreamTransport, MakeTransport
from gateway.relay.http_transport import TransportFactory
from gateway.runtime.guard import call_guarded
from gateway.runtime.trace_context import RequestTrace, received_trace
from gateway.server.coalescing import CompleteResponse, RequestCoalescer, is_coalescible
from gateway.server.internal_request import InternalRequest
from gateway.server.local_endpoints import Targets, model_body, models_body, unknown_model
from gateway.server.stored_responses import StoredResponses
from gateway.server.superseding import SUPERSEDES_HEADER as SUPERSEDES
from gateway.server.superseding import SupersedeRegistry, supersede_key_of
from routing.decision.router import Router
from routing.pods import NO_GRANTS
from routing.reading import ParsedRequest, read_request
from routing.rejection import Reason, RequestRejected
from routing.request import Api, Arrival, Request
from tenancy.objective import LatencyObjective
from tenancy.tenants import Caller

Identify = Callable[[str | None, Mapping[bytes, bytes] | None], Caller]
"""API key, None if there is none, and the headers if a trusted proxy sent them, to the caller. Raises
`RequestRejected`.
"""

RewriteModel = Callable[[str], str]
"""Returns the model that answers instead of a requested one, or the same."""

PrefixLookup = Callable[[Request, bytes], Awaitable[Request]]
"""Adds to a request, given its body, what engines have of it in their caches."""


KeepPrompt = Callable[[Request, bytes, str, Caller], None]
"""Takes a request, its body as a pod is sent it, the path of its endpoint and its caller. Raises nothing."""
CompareAnswers = Callable[[Request, Caller, Callable[[], InternalRequest]], Callable[[], None] | None]
"""Takes a request that is about to run, its caller, and what makes internal requests beside it. Returns what is to be
called when it has ended; None where nothing is. Raises nothing."""
HandOver = Callable[[ParsedRequest], bool]
"""Has a request served elsewhere, if it is to be; returns whether that is so."""


class BeginTrace(Protocol):
    """Begins the trace of a request by its headers; `is_trusted` as for `HttpDispatcher.route`."""

    def __call__(self, headers: Mapping[bytes, bytes], *, is_trusted: bool) -> RequestTrace: ...


JSON = b"application/json"
PLAIN = "text/plain"

COALESCED_BY = (*sorted(SLO_HEADERS), *CASCADE_HEADERS)
"""Headers that decide how soon and by which model a request is answered: where they differ, nothing is shared."""

ANTHROPIC_TARGET = re.compile(rb"/v1/messages(?![^/?])")
"""Targets of Anthropic's API, also those that are not served."""


class HttpDispatcher:
    """One per gateway process; holds no state of a request."""

    def __init__(
        self,
        pipeline: RequestPipeline,
        router: Router,
        identify: Identify,
        carriers: TransportFactory,
        cascades: Cascades,
        timeouts: Timeouts,
        *,
        readiness: Callable[[], bool],
        on_rejected: Callable[[RequestRejected], None],
        cors: CorsPolicy | None = None,
    ) -> None:
        """`readiness`: whether the fleet can serve; `on_rejected`: called for each rejection outside the pipeline."""
        self._pipeline = pipeline
        self._fleet = router.fleet
        self._identify = identify
        self.cascades = cascades
        self._readiness = readiness
        self._on_rejected = on_rejected
        self._cors = cors
        self._stored = StoredResponses(router, pipeline, first_byte_s=timeouts.first_byte_s)
        self._coalescer = RequestCoalescer()
        self._lookup: PrefixLookup | None = None
        self._begin_trace: BeginTrace | None = None
        self._rewrite_model: RewriteModel | None = None
        self._keep_prompt: KeepPrompt | None = None
        self._compare_answers: CompareAnswers | None = None
        self._rewrite_targets: Callable[[], Targets] = dict
        # 96 random bits per process and a count: an id finds a receipt on the admin port and grants nothing, so that
        # the next one may be guessed.
        self._id_prefix = secrets.token_hex(12)
        self._id_count = count()
        self.transports = carriers
        self.supersedes = SupersedeRegistry()
        self.in_flight: set[asyncio.Task[None]] = set()
        self.kept_headers: set[bytes] = set(KEPT_HEADERS) | set(CASCADE_HEADERS) | set(CORS_HEADERS if cors else ())
        self.is_draining = False

    def new_id(self) -> str:
        """Return a request id that no other gateway process makes: 32 hexadecimal digits."""
        return f"{self._id_prefix}{next(self._id_count):08x}"

    def keep_headers(self, names: Iterable[str]) -> None:
        """Read these headers as well, also on open connections: a policy names them."""
        self.kept_headers.update(name.lower().encode("latin-1") for name in names)

    def use_lookup(self, lookup: PrefixLookup) -> None:
        """Look up each request in the precise prefix index before it is placed."""
        self._lookup = lookup

    def keep_prompts(self, keep: KeepPrompt) -> None:
        """Pass each request on, before it is placed: its prompt may be replayed to new pods."""
        self._keep_prompt = keep

    def compare_answers(self, compare: CompareAnswers) -> None:
        """Pass each request on, before it runs: answers of pods on trial may be compared with its answer."""
        self._compare_answers = compare

    def trace_with(self, begin: BeginTrace) -> None:
        """Begin a trace for each request of an inference API."""
        self._begin_trace = begin

    def rewrite_models_with(self, rewrite_model: RewriteModel, targets: Callable[[], Targets] = dict) -> None:
        """Rewrite the model of each request, after its tenant's aliases, unless a proxy has chosen one.

        `targets`: returns the rewritten names and their models, for `/v1/models`.
        """
        self._rewrite_model = rewrite_model
        self._rewrite_targets = targets

    def is_ready(self) -> bool:
        """Whether new requests are welcome: `/ready`, the metrics port and Envoy's health checks report it."""
        return not self.is_draining and self._readiness()

    def begin_drain(self) -> None:
        """Report not ready, and close each connection with its next response; requests are still served."""
        self.is_draining = True

    def route(self, incoming: IncomingRequest, *, is_trusted: bool) -> None:
        """Set endpoint and caller of a request by its head. Raises `RequestRejected`.

        `is_trusted`: it comes from a trusted proxy, whose headers may name the caller and the model.
        """
        incoming.endpoint = endpoint = ENDPOINTS.get(incoming.target) or find_endpoint(incoming.target)
        if incoming.method not in endpoint.methods:
            is_options, cors = incoming.method == "OPTIONS", self._cors
            if is_options and cors is not None and is_allowed_origin(cors, incoming.headers):
                incoming.endpoint = ApiEndpoint(
                    endpoint.path, ("OPTIONS",), local=LocalEndpoint.PREFLIGHT, name=endpoint.allowed_methods
                )
                return
            raise RequestRejected(Reason.METHOD_NOT_ALLOWED, f"{endpoint.path} takes {endpoint.allowed_methods}.")
        if self._begin_trace is not None and endpoint.accounted_api is not None:
            incoming.trace = self._begin_trace(incoming.headers, is_trusted=is_trusted)
        if endpoint.needs_key:
            incoming.caller = self._identify(api_key_of(incoming.headers), incoming.headers if is_trusted else None)
            incoming.model_override = model_override(incoming.headers) if is_trusted else None
        if endpoint.api is not None:
            _check_media_type(incoming)

    def serve(
        self,
        incoming: IncomingRequest,
        reply: ResponseWriter,
        *,
        frontend: Frontend = HTTP,
        make_transport: MakeTransport | None = None,
        hand_over: HandOver | None = None,
    ) -> None:
        """Answer a complete or rejected request, now or later. Raises nothing.

        `frontend`: where it came from; `make_transport`: makes its transport, by default over our own connections;
        `hand_over`: may have it served elsewhere instead.
        """
        endpoint = incoming.endpoint
        if endpoint is None:  # Rejected before it was routed; the error has the format of its API all the same.
            endpoint = incoming.endpoint = ENDPOINTS.get(incoming.target)
        if endpoint is not None:
            reply.api, reply.is_anthropic = endpoint.accounted_api, endpoint.is_anthropic
        elif ANTHROPIC_TARGET.match(incoming.target):
            reply.is_anthropic = True
        if self._cors is not None:
            reply.headers += response_fields(self._cors, incoming.headers)
        try:
            if incoming.rejection is not None or endpoint is None:
                raise incoming.rejection or RequestRejected(Reason.GATEWAY_ERROR, "The request was not routed.")
            if endpoint.api is not None:
                self._infer(endpoint, endpoint.api, incoming, reply, frontend, make_transport, hand_over)
            elif endpoint.local is LocalEndpoint.STORED_RESPONSE:
                self._forward_stored(endpoint, incoming, reply, make_transport)
            else:
                self._answer_locally(endpoint, incoming, reply)
        except RequestRejected as rejection:
            self._reject(incoming, reply, rejection, frontend)
        except Exception as fault:  # noqa: BLE001 - whatever fails in the gateway, the client gets a response
            self._report(fault, reply)

    # -- inference -------------------------------------------------------------------------------------------------

    def _infer(
        self,
        endpoint: ApiEndpoint,
        api: Api,
        incoming: IncomingRequest,
        reply: ResponseWriter,
        frontend: Frontend,
        make_transport: MakeTransport | None,
        hand_over: HandOver | None,
    ) -> None:
        """Read and check the body, then serve it. Raises `RequestRejected` if it cannot be read."""
        tenant = incoming.caller.tenant
        supersede_key = supersede_key_of(incoming) if SUPERSEDES in incoming.headers else None
        reading = read_incoming(api, incoming, incoming.body(), reply.request_id, model=incoming.model_override)
        if self._rewrite_model is not None and incoming.model_override is None:
            model = self._rewrite_model(reading.request.model)
            if model != reading.request.model:  # Read again: the model is part of the prompt's hashes.
                reading = read_incoming(api, incoming, incoming.body(), reply.request_id, model=model)
        request = reading.request
        try:
            if tenant.models is not None and request.model not in tenant.models:
                raise unknown_model(request.model, Reason.MODEL_NOT_ALLOWED)
            if request.continues:
                self._stored.check_continuation(request, tenant)
            headers = incoming.headers
            requested_objective = None if SLO_HEADERS.isdisjoint(headers) else requested_slo(tenant.tier, headers)
        except RequestRejected as rejection:
            self._reject(incoming, reply, rejection, frontend, request.model)
            return
        if hand_over is not None and hand_over(reading):
            return
        if self._keep_prompt is not None:
            self._keep_prompt(request, reading.body, endpoint.path, incoming.caller)
        if tenant.coalesces and make_transport is None and is_coalescible(request, reading.body):
            self._run(reply, self._coalesce(endpoint, incoming, reply, reading, requested_objective))
        else:
            self._begin(endpoint, incoming, reply, reading, requested_objective, frontend, make_transport)
        if supersede_key is not None:
            self.supersedes.supersede(supersede_key, reply)

    def _begin(
        self,
        endpoint: ApiEndpoint,
        incoming: IncomingRequest,
        reply: ResponseWriter,
        reading: ParsedRequest,
        requested_objective: LatencyObjective | None,
        frontend: Frontend = HTTP,
        make_transport: MakeTransport | None = None,
    ) -> None:
        """Run a request through the pipeline in a task of its own.

        The body belongs to the transport, which drops it when the response begins: nothing that lives as long as a
        stream may hold the reading.
        """
        request, caller, lookup = reading.request, incoming.caller, self._lookup
        transport = (
            self.transports.make(endpoint, incoming, reply, reading.body, usage_added=reading.usage_added)
            if make_transport is None
            else make_transport(endpoint.path, reading.body, reading.usage_added)
        )
        run: CascadeRun | None = None
        if request.model in self.cascades.names:
            try:
                run, request = self._begin_cascade(endpoint, incoming, request, transport)
                asyncio.get_running_loop().call_soon(call_guarded, "cascade", _call_after_task, reply, run.close)
            except RequestRejected as rejection:
                self._reject(incoming, reply, rejection, frontend, request.model)
                return

        elif self._compare_answers is not None:
            close = self._compare_answers(
                request,
                caller,
                lambda: InternalRequest(
                    self._pipeline, self.transports, incoming, endpoint, incoming.body(), request.id
                ),
            )
            if close is not None:
                asyncio.get_running_loop().call_soon(call_guarded, "canary", _call_after_task, reply, close)

        def smaller(model: str) -> Request:
            reread = read_incoming(request.api, incoming, transport.body, request.id, model=model)
            transport.downgrade(reread.body, request.model)
            return reread.request

        self._run(
            reply,
            self._pipeline.handle_request(
                request,
                transport,
                caller=caller,
                objective=requested_objective,
                trace=self._trace_of(incoming) if b"traceparent" in incoming.headers else incoming.trace,
                lookup=None if lookup is None else lambda request: lookup(request, transport.body),
                make_downgraded=smaller if caller.tenant.downgrades and run is None else None,
                frontend=frontend,
                hook=run,
            ),
        )

    def _begin_cascade(
        self, endpoint: ApiEndpoint, incoming: IncomingRequest, request: Request, transport: DownstreamTransport
    ) -> tuple[CascadeRun, Request]:
        """Return the cascade state of a request, and the request for its first model. Raises `RequestRejected`."""
        body = incoming.body()

        def read(model: str) -> ParsedRequest:
            return read_incoming(request.api, incoming, incoming.body(), request.id, model=model)

        internal = InternalRequest(self._pipeline, self.transports, incoming, endpoint, body, request.id)
        run = self.cascades.plan_run(
            request,
            body,
            incoming.caller.tenant,
            incoming.headers,
            CascadeModelRequests(transport, read),
            asyncio.get_running_loop().time(),
            internal.send,
            internal.send_for_logprobs,
        )
        try:
            return run, run.next_request()
        except BaseException:
            run.close()
            raise

    async def _coalesce(
        self,
        endpoint: ApiEndpoint,
        incoming: IncomingRequest,
        reply: ResponseWriter,
        reading: ParsedRequest,
        requested_objective: LatencyObjective | None,
    ) -> None:
        """Answer from an identical request in flight, or for those that join this one. Only the first is charged.

        Requests of different accounts are never identical: a limit may reject one and not the other.
        """
        caller, wanted = incoming.caller, tuple(incoming.headers.get(name) for name in COALESCED_BY)
        terms = (caller.tenant.name, caller.tenant.tier.name, caller.accounts, reading.request.grants)
        key = (*terms, endpoint.path, wanted, reading.body)
        shared, started_s = self._coalescer.leader_id(key), asyncio.get_running_loop().time()
        response: CompleteResponse | RequestRejected | None = None
        try:
            response = await self._coalescer.answer(
                key,
                endpoint,
                incoming,
                reply,
                lambda shared: self._begin(endpoint, incoming, shared, reading, requested_objective),
            )
        finally:
            if shared is not None:
                self._pipeline.record_coalesced(
                    reading.request,
                    shared,
                    started_s=started_s,
                    result=AttemptResult(AttemptStatus.OK, response.status)
                    if isinstance(response, CompleteResponse)
                    else None,
                    rejection=response if isinstance(response, RequestRejected) else None,
                    caller=caller,
                    trace=self._trace_of(incoming),
                )

    # -- other endpoints -------------------------------------------------------------------------------------------

    def _forward_stored(
        self,
        endpoint: ApiEndpoint,
        incoming: IncomingRequest,
        reply: ResponseWriter,
        make_transport: MakeTransport | None,
    ) -> None:
        """Forward a request about a stored response to the engine that stores it. Raises `RequestRejected`."""
        pinned = self._stored.pinned_request(reply.request_id, endpoint.name, incoming.caller.tenant)
        body = incoming.body()
        transport = (
            self.transports.make(endpoint, incoming, reply, body, usage_added=False)
            if make_transport is None
            else make_transport(endpoint.path, body, False)
        )
        self._run(reply, self._stored.forward(pinned, transport, incoming.caller, self._trace_of(incoming)))

    def _answer_locally(self, endpoint: ApiEndpoint, incoming: IncomingRequest, reply: ResponseWriter) -> None:
        """Answer what no pod is needed for. Raises `RequestRejected` for an unknown model."""
        tenant, wall_clock = incoming.caller.tenant, self._pipeline.wall_clock
        match endpoint.local:
            case LocalEndpoint.PREFLIGHT if self._cors is not None:
                fields = preflight_fields(self._cors, incoming.headers, endpoint.name)
                reply.answer(200, b"", content_type=PLAIN, fields=fields)
            case LocalEndpoint.HEALTH:
                reply.answer(200, b"", content_type=PLAIN)
            case LocalEndpoint.READY if self.is_ready():
                reply.answer(200, b"", content_type=PLAIN)
            case LocalEndpoint.READY:
                reply.reject(RequestRejected(Reason.NO_POD_READY, "The gateway is not ready.", retry_after_s=1.0))
            case LocalEndpoint.MODELS:
                targets = self._rewrite_targets()
                reply.answer(200, models_body(self._fleet, tenant, int(wall_clock()), self.cascades.by_name, targets))
            case _:
                targets, created_s = self._rewrite_targets(), int(wall_clock())
                reply.answer(
                    200, model_body(self._fleet, tenant, endpoint.name, created_s, self.cascades.by_name, targets)
                )

    def _trace_of(self, incoming: IncomingRequest) -> RequestTrace | None:
        """Return the trace of a request: that of its headers where the gateway makes no spans."""
        return incoming.trace if self._begin_trace is not None else received_trace(incoming.headers)

    # -- how requests end ------------------------------------------------------------------------------------------

    def _run(self, reply: ResponseWriter, serving: Coroutine[Any, Any, None]) -> None:
        """Answer a request in a task of its own; `_finish` ends the response whatever becomes of it."""
        reply.task = task = asyncio.get_running_loop().create_task(serving)
        self.in_flight.add(task)
        task.add_done_callback(partial(self._finish, reply))

    def _finish(self, reply: ResponseWriter, task: asyncio.Task[None]) -> None:
        self.in_flight.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._report(fault, reply)
        if not reply.has_ended:
            reply.abort()

    def _reject(
        self,
        incoming: IncomingRequest,
        reply: ResponseWriter,
        rejection: RequestRejected,
        frontend: Frontend,
        model: str = "",
    ) -> None:
        """Answer with a rejection. An inference request leaves an outcome, and so a receipt; others are counted."""
        if reply.api is None:
            self._on_rejected(rejection)
        else:
            request = Request(reply.request_id, reply.api, model=model, arrival=arrival_of(incoming))
            trace = self._trace_of(incoming)
            self._pipeline.record_rejection(request, rejection, caller=incoming.caller, trace=trace, frontend=frontend)
        is_method = rejection.reason is Reason.METHOD_NOT_ALLOWED and incoming.endpoint is not None
        reply.reject(
            rejection, fields=[("allow", incoming.endpoint.allowed_methods)] if is_method and incoming.endpoint else ()
        )

    def _report(self, fault: BaseException, reply: ResponseWriter) -> None:
        """Log a bug of ours with its traceback, and answer with 500."""
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"serving request {reply.request_id} failed", "exception": fault}
        )
        reply.reject(
            RequestRejected(Reason.GATEWAY_ERROR, "Internal error of the gateway; report it with the request ID.")
        )


def _call_after_task(reply: ResponseWriter, close: Callable[[], None]) -> None:
    """Call what closes a feature's part when its request has ended: a task that is cancelled at once runs no line."""
    if reply.task is None:
        close()
    else:
        reply.task.add_done_callback(lambda _: close())


def arrival_of(incoming: IncomingRequest) -> Arrival:
    """Return how a request arrived, for its record."""
    endpoint = incoming.endpoint
    return Arrival("" if endpoint is None else endpoint.path, client_request_id_of(incoming.headers))


def read_incoming(
    api: Api, incoming: IncomingRequest, body: bytes, request_id: str, *, model: str | None
) -> ParsedRequest:
    """Read a body under the tenant's terms; `model` replaces the one it names. Raises `RequestRejected`."""
    tenant = incoming.caller.tenant
    reading = read_request(
        api,
        body,
        request_id=request_id,
        session=session_of(incoming.headers),
        terms=tenant,
        priority=tenant.tier.priority,
        retried=retry_count(incoming.headers),
        model=model,
        adds_usage=incoming.may_add_usage,
        arrival=arrival_of(incoming),
    )
    if incoming.pod_subset is None and LOCAL_ONLY_HEADER not in incoming.headers:
        return reading
    if is_local_only(incoming.headers):
        reading = replace(reading, request=replace(reading.request, grants=NO_GRANTS))
    if incoming.pod_subset is None:
        return reading
    return replace(reading, request=replace(reading.request, pods=incoming.pod_subset))


def _check_media_type(incoming: IncomingRequest) -> None:
    kind = incoming.headers.get(b"content-type", b"")
    if kind != JSON and kind.partition(b";")[0].strip().lower() != JSON:
        raise RequestRejected(Reason.UNSUPPORTED_MEDIA_TYPE, "Send the body as `Content-Type: application/json`.")
    if incoming.headers.get(b"content-encoding", b"identity").lower() != b"identity":
        # Engines would take the compressed bytes for the body.
        raise RequestRejected(Reason.UNSUPPORTED_MEDIA_TYPE, "Send the body without a Content-Encoding.")
