"""Where a request goes once it is read: to a pod by way of `Passage`, to the pod that stored a response, or nowhere.

A request that a pod has to answer is led in a task of its own; all else is answered at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from gateway.ladders.climb import Climb
from gateway.ladders.ladders import Ladders
from gateway.limits import Limits
from gateway.proxy.aside import Aside
from gateway.proxy.carrying.carrier import LONGEST_TRACE, HttpCarrier, PodKeys
from gateway.proxy.carrying.carries import Carries
from gateway.proxy.carrying.keeping import Keeping
from gateway.proxy.carrying.rungs import Rungs
from gateway.proxy.client.asked import Asked, Budget
from gateway.proxy.client.reply import Reply
from gateway.proxy.client.spoken import DEADLINES, decided_model, promised, retries
from gateway.proxy.crowd import Begin, Crowds, Told, is_shareable
from gateway.proxy.endpoints import TABLE, Endpoint, Local, find_endpoint
from gateway.proxy.latest import Latest
from gateway.proxy.latest import key_of as newest_of
from gateway.proxy.models import model_page, models_page, unknown_model
from gateway.proxy.pods.pool import Pool
from gateway.spine.carrier import Leg, LegEnd
from gateway.spine.carrying import REASON_OF_END
from gateway.spine.passage import Passage
from routing.fleet import Engine
from routing.reading import Reading, owned, read_request
from routing.refusal import Reason, Refused
from routing.request import Api, Request
from routing.router import Router
from tenancy.promise import Promise
from tenancy.tenants import Caller, Tenant

Identify = Callable[[str | None, Mapping[bytes, bytes] | None], Caller]
"""Whoever shows a key, or none; and what headers say of it, if somebody sends them who may. Raises `Refused`."""

LookAt = Callable[[Request, bytes], Awaitable[Request]]
"""`Look` with the request's body."""

JSON = b"application/json"

SESSION_HEADERS = (b"x-session-id", b"x-claude-code-session-id", b"session-id")
LONGEST_SESSION = 256


class Answering(Protocol):
    """Whatever a client is answered by."""

    def answer(self, status: int, body: bytes, *, content_type: str = ...) -> None: ...
    def refuse(self, refusal: Refused) -> None: ...


@dataclass(frozen=True, slots=True)
class Errand:
    """A request for what one engine has stored: it is placed nowhere and charged to nobody."""

    request: Request
    engine: Engine
    handover: None = None

    def first_token(self, now_s: float) -> None:
        """Nothing was computed."""


class Desk:
    """One per front. `on_refused` is told of what was refused before it became a request of the fleet's."""

    def __init__(
        self,
        passage: Passage,
        router: Router,
        identify: Identify,
        key_of: PodKeys,
        pool: Pool,
        budget: Budget,
        *,
        limits: Limits,
        readiness: Callable[[], bool],
        on_refused: Callable[[Refused], None],
        wall_clock: Callable[[], float],
    ) -> None:
        self._passage = passage
        self._router = router
        self._identify = identify
        self._key_of = key_of
        self._pool = pool
        self._budget = budget
        self._limits = limits
        self.kept_bodies = Budget(limits.kept_bodies_bytes)
        """Of requests whose answers stream, should they have to be gone on with."""
        self._readiness = readiness
        self._on_refused = on_refused
        self._wall_clock = wall_clock
        self.ladders = Ladders(router)
        """Names that stand for several models; none, unless it is told of some."""
        self.look_at: LookAt | None = None
        """Finds out what engines hold of a request with this body, where exact warmth is wanted."""
        self._crowds = Crowds()
        self._latest = Latest()
        self.tasks: set[asyncio.Task[None]] = set()

    def route(self, asked: Asked, *, is_trusted: bool) -> None:
        """What can be said by the head alone, before a body is kept for anybody. Raises `Refused`.

        `is_trusted`: whoever sends it may speak for others.
        """
        asked.endpoint = endpoint = find_endpoint(asked.target)
        if asked.method not in endpoint.methods:
            raise Refused(Reason.WRONG_METHOD, f"{endpoint.path} takes {endpoint.allow}.")
        if endpoint.needs_key:
            asked.caller = self._identify(_key(asked), asked.headers if is_trusted else None)
            asked.model = decided_model(asked.headers) if is_trusted else None
        if endpoint.api is not None:
            _check_media_type(asked)

    def serve(self, asked: Asked, reply: Reply) -> None:
        """Answer, now or later."""
        if asked.endpoint is None:
            asked.endpoint = TABLE.get(asked.target)  # Refused before it was routed, it has a dialect all the same.
        if asked.endpoint is not None:
            reply.api, reply.is_anthropic = asked.endpoint.api, asked.endpoint.is_anthropic
        try:
            self._serve(asked, reply)
        except Refused as refusal:
            self._note(asked, reply, refusal)
            is_method = refusal.reason is Reason.WRONG_METHOD and asked.endpoint is not None
            reply.refuse(refusal, fields=[("allow", asked.endpoint.allow)] if is_method and asked.endpoint else ())
        except Exception as fault:  # noqa: BLE001 - whatever is wrong with us, the client gets an answer
            self._report(fault, reply)

    def _note(self, asked: Asked, reply: Reply, refusal: Refused) -> None:
        """What was asked of the fleet leaves an outcome, and so a receipt; what was not is counted."""
        if reply.api is None:
            self._on_refused(refusal)
            return
        request = Request(reply.request_id, reply.api, model="")
        self._passage.turn_away(request, refusal, caller=asked.caller, trace=trace_of(asked), shell=reply.shell)

    def _serve(self, asked: Asked, reply: Reply) -> None:
        endpoint = asked.endpoint
        if asked.refusal is not None:
            raise asked.refusal
        if endpoint is None:
            raise Refused(Reason.GATEWAY_ERROR, "The request was not routed.")
        if endpoint.api is not None:
            self._lead(endpoint, endpoint.api, asked, reply)
        elif endpoint.local is Local.STORED_RESPONSE:
            self._fetch(endpoint, asked, reply)
        else:
            self.answer(endpoint, asked.caller.tenant, reply)

    # -- what a pod answers ----------------------------------------------------------------------------------------

    def _lead(self, endpoint: Endpoint, api: Api, asked: Asked, reply: Reply) -> None:
        tenant, newest = asked.caller.tenant, newest_of(asked)
        reading = self.read(api, asked, asked.body(), reply.request_id, model=asked.model)
        self.check(reading.request, tenant)
        promise = promised(tenant.tier, asked.headers)

        def begin(reply: Reply) -> None:
            self._begin(endpoint, asked, reply, reading, promise)

        if tenant.coalesces and reply.make_carrier is None and is_shareable(reading.request, reading.body):
            self._start(reply, lambda: self._share(reading, endpoint.path, asked, reply, begin))
        else:
            begin(reply)
        if newest is not None:
            self._latest.take(newest, reply)

    def _begin(self, endpoint: Endpoint, asked: Asked, reply: Reply, reading: Reading, promise: Promise | None) -> None:
        # The body is the carrier's, which lets go of it when the answer begins: a stream may last. So nothing that
        # lasts as long may hold the reading.
        carrier = self._carrier(endpoint, asked, reply, reading.body, usage_added=reading.usage_added)
        request, caller, trace, look_at = reading.request, asked.caller, trace_of(asked), self.look_at
        climb: Climb | None = None
        if request.model in self.ladders:
            try:
                climb, request = self._climb(endpoint, asked, reading, carrier)
            except Refused as refusal:
                self._note(asked, reply, refusal)
                reply.refuse(refusal)
                return

        def smaller(model: str) -> Request:
            again = self.read(request.api, asked, carrier.body, request.id, model=model)
            carrier.ask_instead(again.body, request.model)
            return again.request

        look = (lambda request: look_at(request, carrier.body)) if look_at is not None else None
        others = smaller if caller.tenant.downgrades and climb is None else None
        self._start(
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

    def _climb(self, endpoint: Endpoint, asked: Asked, reading: Reading, carrier: Carries) -> tuple[Climb, Request]:
        """The way of a request up its ladder, and its first rung's request. Raises `Refused`."""
        request, now_s, body = reading.request, asyncio.get_running_loop().time(), asked.body()
        rungs = Rungs(carrier, lambda model: self.read(request.api, asked, asked.body(), request.id, model=model))
        aside = Aside(
            self._passage,
            lambda endpoint, reply, body: self._carrier(endpoint, asked, reply, body, usage_added=False),
            *(asked, endpoint, body, request.id),
        )
        climb = self.ladders.begin(request, body, asked.caller.tenant, asked.headers, rungs, now_s, aside.ask)
        return climb, climb.ask()

    def read(self, api: Api, asked: Asked, body: bytes, request_id: str, *, model: str | None = None) -> Reading:
        """What a body asks for, under the terms of whoever sends it. Raises `Refused`."""
        tenant = asked.caller.tenant
        reading = read_request(
            api,
            body,
            request_id=request_id,
            session=_session(asked),
            terms=tenant,
            priority=tenant.tier.priority,
            retried=retries(asked.headers),
            model=model,
            adds_usage=asked.may_add_usage,
        )
        if asked.pods is None:
            return reading
        return replace(reading, request=replace(reading.request, pods=asked.pods))

    def check(self, request: Request, tenant: Tenant) -> None:
        """Raise `Refused` where a tenant may not ask for this."""
        if not tenant.may_use(request.model):
            raise unknown_model(request.model, Reason.MODEL_NOT_ALLOWED)
        if request.continues and tenant.name is not None and self._router.responses.get(request.continues) is None:
            # Its pod would go on with it, whoever asks.
            raise _unknown_response("previous_response_id")

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
                    trace=trace_of(asked),
                )

    def _fetch(self, endpoint: Endpoint, asked: Asked, reply: Reply) -> None:
        engine = self.engine_of(endpoint.name, asked.caller.tenant)
        request = Request(reply.request_id, Api.RESPONSES, model="")
        carrier = self._carrier(endpoint, asked, reply, asked.body(), usage_added=False)
        self._start(reply, lambda: self._run(Errand(request, engine), carrier))

    async def _run(self, errand: Errand, carrier: Carries) -> None:
        by_s = asyncio.get_running_loop().time() + self._pool.timeouts.first_byte_s
        leg = await carrier.carry(errand, by_s)
        if leg.end is not LegEnd.ANSWERED:
            refusal = Refused(REASON_OF_END[leg.end], leg.detail, retry_after_s=1.0)
            self._on_refused(refusal)
            carrier.refuse(refusal)

    def engine_of(self, response_id: str, tenant: Tenant) -> Engine:
        """Where a tenant's own response is stored. Raises `Refused`."""
        slot = self._router.responses.get(owned(response_id, tenant.name))
        for pod in self._router.fleet.pods:
            for engine in pod.engines:
                if engine.slot == slot and (tenant.regions is None or pod.region in tenant.regions):
                    return engine
        raise _unknown_response("response_id")

    def _carrier(self, endpoint: Endpoint, asked: Asked, reply: Reply, body: bytes, *, usage_added: bool) -> Carries:
        if reply.make_carrier is not None:
            return reply.make_carrier(endpoint, body, usage_added)
        return HttpCarrier(
            asked,
            reply,
            path=endpoint.path,
            body=body,
            usage_added=usage_added,
            pool=self._pool,
            key_of=self._key_of,
            takes_priority=self.takes_priority,
            keeping=Keeping(self.kept_bodies, self._limits, is_off=not asked.caller.tenant.resumes),
            body_needed_no_more=lambda: asked.drop_body(self._budget),
        )

    def takes_priority(self, url: str) -> bool:
        """Whether the pod at a URL schedules by priority."""
        pod = self._router.fleet.pod(url)
        return pod is not None and pod.takes_priority

    def _start(self, reply: Reply, lead: Callable[[], Awaitable[None]]) -> None:
        reply.task = task = self._pool.loop.create_task(self._see_through(reply, lead))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _see_through(self, reply: Reply, lead: Callable[[], Awaitable[None]]) -> None:
        try:
            await lead()
        except Exception as fault:  # noqa: BLE001 - whatever is wrong with us, the client gets an answer
            self._report(fault, reply)
        finally:
            if not reply.ended:
                reply.cut()

    def _report(self, fault: Exception, reply: Reply) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"serving request {reply.request_id} failed", "exception": fault}
        )
        reply.refuse(Refused(Reason.GATEWAY_ERROR, "The gateway failed to serve this request."))

    # -- what we answer --------------------------------------------------------------------------------------------

    def answer(self, endpoint: Endpoint, tenant: Tenant, reply: Answering) -> None:
        """Say what no pod need be asked for."""
        fleet, created_s = self._router.fleet, int(self._wall_clock())
        match endpoint.local:
            case Local.HEALTH:
                reply.answer(200, b"", content_type="text/plain")
            case Local.READY if self._readiness():
                reply.answer(200, b"", content_type="text/plain")
            case Local.READY:
                reply.refuse(Refused(Reason.NO_POD_READY, "The gateway is not ready.", retry_after_s=1.0))
            case Local.MODELS:
                reply.answer(200, models_page(fleet, tenant, created_s, self.ladders.all))
            case _:
                reply.answer(200, model_page(fleet, tenant, endpoint.name, created_s, self.ladders.all))


def _key(asked: Asked) -> str | None:
    """The client's key, as OpenAI's clients send it or as Anthropic's do."""
    scheme, _, token = asked.headers.get(b"authorization", b"").partition(b" ")
    key = token.strip() if scheme.lower() == b"bearer" else asked.headers.get(b"x-api-key", b"")
    return key.decode("utf-8", "surrogateescape") or None


def _check_media_type(asked: Asked) -> None:
    kind = asked.headers.get(b"content-type", b"")
    if kind != JSON and kind.partition(b";")[0].strip().lower() != JSON:
        raise Refused(Reason.WRONG_MEDIA_TYPE, "Send the body as `Content-Type: application/json`.")
    if asked.headers.get(b"content-encoding", b"identity").lower() != b"identity":
        # Engines would take the compressed bytes for the body.
        raise Refused(Reason.WRONG_MEDIA_TYPE, "Send the body without a Content-Encoding.")


def trace_of(asked: Asked) -> str | None:
    """The W3C `traceparent` that came with a request."""
    trace = asked.headers.get(b"traceparent")
    return trace.decode("latin-1") if trace and len(trace) <= LONGEST_TRACE else None


def _unknown_response(param: str) -> Refused:
    """The same words whether a response does not exist or is somebody else's."""
    return Refused(Reason.UNKNOWN_RESPONSE, "No response with this id is known here.", param=param)


def _session(asked: Asked) -> str | None:
    """What the client calls the conversation."""
    for name in SESSION_HEADERS:
        value = asked.headers.get(name)
        if value and len(value) <= LONGEST_SESSION:
            return value.decode("latin-1")
    return None
