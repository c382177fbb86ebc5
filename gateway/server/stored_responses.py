"""Requests about responses that pods store: each is fetched, cancelled, deleted or continued on its own pod only."""

from __future__ import annotations

import asyncio

from gateway.pipeline.pipeline import RequestPipeline
from gateway.pipeline.transport import DownstreamTransport, PinnedRequest
from gateway.runtime.trace_context import RequestTrace
from routing.decision.router import Router
from routing.pods import Pod
from routing.reading import scoped_name
from routing.rejection import Reason, RequestRejected
from routing.request import Api, Request
from tenancy.tenants import Caller, Tenant


class StoredResponses:
    """One per dispatcher."""

    def __init__(self, router: Router, pipeline: RequestPipeline, *, first_byte_s: float) -> None:
        self._router = router
        self._pipeline = pipeline
        self._first_byte_s = first_byte_s

    def pinned_request(self, request_id: str, response_id: str, tenant: Tenant) -> PinnedRequest:
        """Return a request to the engine that stores a tenant's response. Raises `RequestRejected` if it is unknown."""
        slot = self._router.responses.get(scoped_name(response_id, tenant.name))
        for pod in self._router.fleet.pods:
            for engine in pod.engines:
                if engine.slot == slot and (tenant.regions is None or pod.region in tenant.regions):
                    # It computes no tokens: none are reserved, and it counts as one request.
                    return PinnedRequest(Request(request_id, Api.RESPONSES, _model_of(pod), max_tokens=0), engine)
        raise _unknown_response("response_id")

    async def forward(
        self, pinned: PinnedRequest, transport: DownstreamTransport, caller: Caller, trace: RequestTrace | None
    ) -> None:
        """Forward the request, and record its outcome."""
        by_s = asyncio.get_running_loop().time() + self._first_byte_s
        await self._pipeline.run_pinned(
            pinned.request, lambda: transport.run_attempt(pinned, by_s), transport.reject, caller=caller, trace=trace
        )

    def check_continuation(self, request: Request, tenant: Tenant) -> None:
        """Raise `RequestRejected` if a request continues a response of another tenant: pods do not check that."""
        if request.continues and tenant.name is not None and self._router.responses.get(request.continues) is None:
            raise _unknown_response("previous_response_id")


def _model_of(pod: Pod) -> str:
    """Return the base model of a pod; one of its adapters may have answered."""
    return next((card.name for card in pod.cards if card.parent is None), "")


def _unknown_response(param: str) -> RequestRejected:
    """Return the rejection; its text is the same if the response does not exist or belongs to another tenant."""
    return RequestRejected(Reason.RESPONSE_NOT_FOUND, "No stored response with this ID.", param=param)
