"""Responses that pods have stored: each is fetched, cancelled, deleted and gone on with where it is, or nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.proxy.carrying.carries import Carries
from gateway.proxy.carrying.errand import Errand
from gateway.spine.carrier import LegEnd
from gateway.spine.carrying import REASON_OF_END
from routing.reading import owned
from routing.refusal import Reason, Refused
from routing.request import Api, Request
from routing.router import Router
from tenancy.tenants import Tenant


class Stored:
    """One per desk. `on_refused` is told of errands that came to nothing."""

    def __init__(self, router: Router, *, first_byte_s: float, on_refused: Callable[[Refused], None]) -> None:
        self._router = router
        self._first_byte_s = first_byte_s
        self._on_refused = on_refused

    def errand(self, request_id: str, response_id: str, tenant: Tenant) -> Errand:
        """To where a tenant's own response is. Raises `Refused` where that is nowhere."""
        slot = self._router.responses.get(owned(response_id, tenant.name))
        for pod in self._router.fleet.pods:
            for engine in pod.engines:
                if engine.slot == slot and (tenant.regions is None or pod.region in tenant.regions):
                    return Errand(Request(request_id, Api.RESPONSES, model=""), engine)
        raise _unknown_response("response_id")

    async def run(self, errand: Errand, carrier: Carries) -> None:
        """Answer by what the engine says of it."""
        leg = await carrier.carry(errand, asyncio.get_running_loop().time() + self._first_byte_s)
        if leg.end is not LegEnd.ANSWERED:
            refusal = Refused(REASON_OF_END[leg.end], leg.detail, retry_after_s=1.0)
            self._on_refused(refusal)
            carrier.refuse(refusal)

    def check(self, request: Request, tenant: Tenant) -> None:
        """Raise `Refused` where a request goes on with a response that is not its tenant's.

        The pod that stored it would go on with it, whoever asks.
        """
        if request.continues and tenant.name is not None and self._router.responses.get(request.continues) is None:
            raise _unknown_response("previous_response_id")


def _unknown_response(param: str) -> Refused:
    """The same words whether a response does not exist or is somebody else's."""
    return Refused(Reason.UNKNOWN_RESPONSE, "No response with this id is known here.", param=param)
