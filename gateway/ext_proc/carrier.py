"""Carries a request by way of Envoy: sends it the pod, follows what is shown of the response, returns how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from gateway.ext_proc.protocol import PATH, PREFILLER, PRIORITY, RANK, REQUEST_ID, ResponseVisibility, endpoint_of
from gateway.ext_proc.response import ResponseSide
from gateway.http.client_request import IncomingRequest
from gateway.http.response_writer import ResponseWriter
from gateway.limits.accounts import RequestMeter
from gateway.pipeline.attempt import AttemptResult, AttemptStatus
from gateway.relay.http_transport import (
    APIS_WITH_PRIORITY,
    CASCADE_MODEL_HEADER,
    DOWNGRADED_HEADER,
    MAX_TOKENS_HEADER,
    PodKeys,
    TakesPriority,
    with_token_cap,
)
from gateway.relay.relay import PlacedAttempt, Relay
from routing.decision.placement import Placement
from routing.reading import with_fields
from routing.rejection import RequestRejected
from routing.request import Api


@dataclass(frozen=True, slots=True)
class EndpointPick:
    """Destination of a request, headers to set, and its body."""

    endpoints: str
    fields: list[tuple[str, str]]
    body: bytes


@dataclass(frozen=True, slots=True)
class ExtProcTransportConfig:
    """Settings of all transports of one gateway."""

    keys: PodKeys
    takes_priority: TakesPriority
    kept_bytes: int
    max_endpoints: int = 1


class ExtProcTransport:
    """Sends one request by way of Envoy. Implements the pipeline's transport."""

    def __init__(
        self,
        answer: ResponseSide,
        send_pick: Callable[[EndpointPick, Relay], None],
        incoming: IncomingRequest,
        reply: ResponseWriter,
        means: ExtProcTransportConfig,
        *,
        path: str,
        body: bytes,
        usage_added: bool,
        body_needed_no_more: Callable[[], None],
    ) -> None:
        """`incoming`: the request as Envoy has it. `path`: the path at the pod."""
        self._answer = answer
        self._send_pick = send_pick
        self._target = incoming.target
        self._trace = incoming.trace
        self._has_tracestate = b"tracestate" in incoming.headers
        self._reply = reply
        self._means = means
        self._path = path
        self._body = body
        self._usage_added = usage_added
        self._body_needed_no_more = body_needed_no_more
        self._request_meter: RequestMeter | None = None

    @property
    def body(self) -> bytes:
        """The request body; empty once Envoy has it."""
        return self._body

    def downgrade(self, body: bytes, model: str) -> None:
        """Replace the body: a smaller model answers for `model`; a response header says so."""
        self._body = with_token_cap(self._request_meter, body)
        self._reply.headers += ((DOWNGRADED_HEADER, model),)

    def use_cascade_model(self, body: bytes, model: str, *, usage_added: bool) -> None:
        """Replace the body by that for a cascade model; a response header names it."""
        self._body, self._usage_added = with_token_cap(self._request_meter, body), usage_added
        others = tuple(field for field in self._reply.headers if field[0] != CASCADE_MODEL_HEADER)
        self._reply.headers = (*others, (CASCADE_MODEL_HEADER, model))

    def open_meter(self, request_meter: RequestMeter) -> None:
        self._reply.headers = request_meter.headers()
        self._request_meter = request_meter
        if request_meter.max_tokens is not None:
            self._body = with_token_cap(request_meter, self._body)
            self._reply.headers += ((MAX_TOKENS_HEADER, str(request_meter.max_tokens)),)

    def set_judge(self, judge: object) -> None:
        """Do nothing: responses cannot be held back here, and such cascades are rejected when settings are read."""

    async def prefill(self, placement: object, order: object, by_s: float) -> None:
        """Do nothing: the sidecar beside the decode engine prefills; a header names the prefill engine."""

    def reject(self, rejection: RequestRejected) -> None:
        self._reply.reject(rejection)

    async def run_attempt(self, placement: PlacedAttempt, first_byte_by_s: float) -> AttemptResult:
        """Run one attempt, as `AttemptTransport.run_attempt` says. Envoy takes one destination only, so no attempt may
        be retried.
        """
        loop, request_meter = asyncio.get_running_loop(), self._request_meter
        relay = Relay(
            self._reply,
            placement,
            self._path,
            loop=loop,
            withholds_usage=self._usage_added,
            recorded_bytes=self._means.kept_bytes,
            meter=request_meter
            if request_meter is not None
            and request_meter.is_watched
            and self._answer.visible is ResponseVisibility.FULL
            else None,
        )
        self._send_pick(self._pick(placement), relay)
        self._body = b""
        self._body_needed_no_more()
        timer = loop.call_at(first_byte_by_s, self._time_is_up, relay)
        try:
            await relay.ended
        finally:
            timer.cancel()
            self._estimate()
        attempt_result = relay.result()
        return attempt_result if attempt_result.started else replace(attempt_result, started=True)

    def _time_is_up(self, relay: Relay) -> None:
        if not self._answer.has_received_head:
            relay.fail(AttemptStatus.TIMEOUT, f"{relay.placement.engine.pod} did not respond in time.")

    def _estimate(self) -> None:
        """Charge a stream that was not seen: by its events, or by the expected output."""
        request_meter = self._request_meter
        if (
            request_meter is not None
            and request_meter.request.stream
            and self._answer.visible is not ResponseVisibility.FULL
        ):
            request_meter.count_events(self._answer.events or request_meter.request.expected_output_tokens)

    def _pick(self, placement: PlacedAttempt) -> EndpointPick:
        engine, request, body, means = placement.engine, placement.request, self._body, self._means
        fields = [(REQUEST_ID, self._reply.request_id)]
        if self._target != self._path.encode("ascii"):
            fields.append((PATH, self._path))  # Without its query, as our own proxy asks pods.
        key = means.keys.key
        if key is not None:
            fields.append(("authorization", f"Bearer {key}"))
        if engine.rank is not None:
            fields.append((RANK, str(engine.rank)))
        # Set only where the pod supports it: elsewhere it may be an error. Higher goes first here, lower at the pod.
        priority = -request.priority if request.priority and means.takes_priority(engine.pod) else 0
        if priority and request.api in APIS_WITH_PRIORITY:
            body = with_fields(body, b'"priority":%d' % priority)
        elif priority and request.api is Api.MESSAGES:
            fields.append((PRIORITY, str(priority)))
        prefill = getattr(placement, "prefill", None)
        if prefill is not None:
            fields.append((PREFILLER, endpoint_of(prefill.engine.pod)))
        if self._trace is not None:
            fields += self._trace.fields()
            if self._has_tracestate and not self._trace.state:
                fields.append(("tracestate", ""))  # The client's, of a trace that is not continued.
        return EndpointPick(self._endpoints(placement), fields, body)

    def _endpoints(self, placement: PlacedAttempt) -> str:
        """Return the chosen endpoint, followed by those that scored next if a list is supported."""
        first, most = endpoint_of(placement.engine.pod), self._means.max_endpoints
        if most == 1 or not isinstance(placement, Placement):
            return first
        others = dict.fromkeys(endpoint_of(shown.engine.partition("#")[0]) for shown in placement.top_candidates())
        return ",".join([first, *(endpoint for endpoint in others if endpoint != first)][:most])
