"""Leads to the fleet what a pod has to answer: read, checked, shared with whoever asks the same, and carried.

Knows bodies and replies; where a request is placed and what is tried again is the spine's affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from gateway.cascades.cascades import Ladders
from gateway.cascades.climb import Climb
from gateway.http.client_request import Asked
from gateway.http.coalescing import Begin, Crowds, Told, is_shareable
from gateway.http.endpoints import Endpoint
from gateway.http.in_flight import UnderWay
from gateway.http.internal_request import Aside
from gateway.http.local_endpoints import unknown_model
from gateway.http.request_headers import DEADLINES, promised, retries, session_of, trace_of
from gateway.http.response_writer import Reply
from gateway.http.stored_responses import Stored
from gateway.http.superseding import Latest
from gateway.http.superseding import key_of as newest_of
from gateway.pipeline.attempt import Leg, LegEnd
from gateway.pipeline.pipeline import Passage
from gateway.relay.cascade_attempt import Rungs
from gateway.relay.downstream_transport import Carries
from gateway.relay.transport_factory import Carriers
from routing.reading import Reading, read_request
from routing.rejection import Reason, Refused
from routing.request import Api, Request
from tenancy.objective import Promise

LookAt = Callable[[Request, bytes], Awaitable[Request]]
"""`Look` with the request's body."""


class Leading:
    """One per desk."""

    def __init__(
        self, passage: Passage, carriers: Carriers, stored: Stored, ladders: Ladders, under_way: UnderWay
    ) -> None:
        self._passage = passage
        self._carriers = carriers
        self._stored = stored
        self._ladders = ladders
        self._under_way = under_way
        self._crowds = Crowds()
        self.latest = Latest()
        self.look_at: LookAt | None = None
        """Finds out what engines hold of a request with this body, where exact warmth is wanted."""

    def lead(self, endpoint: Endpoint, api: Api, asked: Asked, reply: Reply) -> None:
        """Have a pod answer. Raises `Refused` where a body cannot be read."""
        tenant, newest = asked.caller.tenant, newest_of(asked)
        reading = read_asked(api, asked, asked.body(), reply.request_id, model=asked.model)
        try:
            if not tenant.may_use(reading.request.model):
                raise unknown_model(reading.request.model, Reason.MODEL_NOT_ALLOWED)
            self._stored.check(reading.request, tenant)
            promise = promised(tenant.tier, asked.headers)
        except Refused as refusal:
            self.turn_away(api, asked, reply, refusal, model=reading.request.model)
            reply.refuse(refusal)
            return

        def begin(reply: Reply) -> None:
            self._begin(endpoint, asked, reply, reading, promise)

        if tenant.coalesces and reply.make_carrier is None and is_shareable(reading.request, reading.body):
            self._under_way.begin(reply, lambda: self._share(reading, endpoint.path, asked, reply, begin))
        else:
            begin(reply)
        if newest is not None:
            self.latest.take(newest, reply)

    def turn_away(self, api: Api, asked: Asked, reply: Reply, refusal: Refused, model: str = "") -> None:
        """What was asked of the fleet leaves an outcome, and so a receipt, though it was never led."""
        request, trace = Request(reply.request_id, api, model=model), trace_of(asked.headers)
        self._passage.turn_away(request, refusal, caller=asked.caller, trace=trace, shell=reply.shell)

    def _begin(self, endpoint: Endpoint, asked: Asked, reply: Reply, reading: Reading, promise: Promise | None) -> None:
        # The body is the carrier's, which lets go of it when the answer begins: a stream may last. So nothing that
        # lasts as long may hold the reading.
        carrier = self._carriers.make(endpoint, asked, reply, reading.body, usage_added=reading.usage_added)
        request, caller, trace, look_at = reading.request, asked.caller, trace_of(asked.headers), self.look_at
        climb: Climb | None = None
        if request.model in self._ladders:
            try:
                climb, request = self._climb(endpoint, asked, request, carrier)
            except Refused as refusal:
                self.turn_away(request.api, asked, reply, refusal, request.model)
                reply.refuse(refusal)
                return

        def smaller(model: str) -> Request:
            again = read_asked(request.api, asked, carrier.body, request.id, model=model)
            carrier.ask_instead(again.body, request.model)
            return again.request

        look = (lambda request: look_at(request, carrier.body)) if look_at is not None else None
        others = smaller if caller.tenant.downgrades and climb is None else None
        self._under_way.begin(
            reply,
            lambda: self._passage.lead(
                request,
                carrier,
                caller=caller,
                promise=promise,
                trace=trace,
                look=look,
                smaller=others,
                shell=reply.shell,
                climb=climb,
            ),
        )

    def _climb(self, endpoint: Endpoint, asked: Asked, request: Request, carrier: Carries) -> tuple[Climb, Request]:
        """The way of a request up its ladder, and its first rung's request. Raises `Refused`."""
        now_s, body = asyncio.get_running_loop().time(), asked.body()
        rungs = Rungs(carrier, lambda model: read_asked(request.api, asked, asked.body(), request.id, model=model))
        aside = Aside(
            self._passage,
            lambda endpoint, reply, body: self._carriers.make(endpoint, asked, reply, body, usage_added=False),
            *(asked, endpoint, body, request.id),
        )
        climb = self._ladders.begin(request, body, asked.caller.tenant, asked.headers, rungs, now_s, aside.ask)
        return climb, climb.ask()

    async def _share(self, reading: Reading, path: str, asked: Asked, reply: Reply, begin: Begin) -> None:
        """Answer with others who ask the same, or for them. Who only shares an answer is charged nothing.

        Whose accounts differ are not alike: one might be refused for what only the other has used up.
        """
        caller, deadlines = asked.caller, tuple(asked.headers.get(name) for name in sorted(DEADLINES))
        key = (caller.tenant.name, caller.tenant.tier.name, caller.accounts, path, deadlines, reading.body)
        shared, started_s = self._crowds.whose(key), asyncio.get_running_loop().time()
        told: Told | Refused | None = None
        try:
            told = await self._crowds.answer(key, asked, reply, begin)
        finally:
            if shared is not None:
                self._passage.note_shared(
                    reading.request,
                    shared,
                    started_s=started_s,
                    leg=Leg(LegEnd.ANSWERED, told.status) if isinstance(told, Told) else None,
                    refusal=told if isinstance(told, Refused) else None,
                    caller=caller,
                    trace=trace_of(asked.headers),
                )


def read_asked(api: Api, asked: Asked, body: bytes, request_id: str, *, model: str | None) -> Reading:
    """What a body asks for, under the terms of whoever sends it. Raises `Refused`."""
    tenant = asked.caller.tenant
    reading = read_request(
        api,
        body,
        request_id=request_id,
        session=session_of(asked.headers),
        terms=tenant,
        priority=tenant.tier.priority,
        retried=retries(asked.headers),
        model=model,
        adds_usage=asked.may_add_usage,
    )
    if asked.pods is None:
        return reading
    return replace(reading, request=replace(reading.request, pods=asked.pods))
