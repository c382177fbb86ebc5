"""Responses that pods have stored: each is fetched, cancelled, deleted and gone on with where it is, or nowhere."""

from __future__ import annotations

import asyncio

from gateway.pipeline.pipeline import Passage
from gateway.relay.downstream_transport import Carries
from gateway.relay.pinned_request import Errand
from routing.decision.router import Router
from routing.pods import Pod
from routing.reading import owned
from routing.rejection import Reason, Refused
from routing.request import Api, Request
from tenancy.tenants import Caller, Tenant


class Stored:
    """One per desk."""

    def __init__(self, router: Router, passage: Passage, *, first_byte_s: float) -> None:
        self._router = router
        self._passage = passage
        self._first_byte_s = first_byte_s

    def errand(self, request_id: str, response_id: str, tenant: Tenant) -> Errand:
        """To where a tenant's own response is. Raises `Refused` where that is nowhere."""
        slot = self._router.responses.get(owned(response_id, tenant.name))
        for pod in self._router.fleet.pods:
            for engine in pod.engines:
                if engine.slot == slot and (tenant.regions is None or pod.region in tenant.regions):
                    # No tokens are computed for it: none are reserved, and it counts as one request.
                    return Errand(Request(request_id, Api.RESPONSES, _model_of(pod), max_tokens=0), engine)
        raise _unknown_response("response_id")

    async def run(self, errand: Errand, carrier: Carries, caller: Caller, trace: str | None) -> None:
        """Answer by what the engine has to say of it. Leaves an outcome, as every request does."""
        by_s = asyncio.get_running_loop().time() + self._first_byte_s
        await self._passage.run_errand(
            errand.request, lambda: carrier.carry(errand, by_s), carrier.refuse, caller=caller, trace=trace
        )

    def check(self, request: Request, tenant: Tenant) -> None:
        """Raise `Refused` where a request goes on with a response that is not its tenant's.

        The pod that stored it would go on with it, whoever asks.
        """
        if request.continues and tenant.name is not None and self._router.responses.get(request.continues) is None:
            raise _unknown_response("previous_response_id")


def _model_of(pod: Pod) -> str:
    """The model that a pod was started with; an adapter of it may have answered."""
    return next((card.name for card in pod.cards if card.parent is None), "")


def _unknown_response(param: str) -> Refused:
    """The same words whether a response does not exist or is somebody else's."""
    return Refused(Reason.UNKNOWN_RESPONSE, "No response with this id is known here.", param=param)
