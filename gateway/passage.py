"""The spine: leads one request from its arrival to its receipt.

Choose and charge, carry, settle; a pod that fails before the client saw a byte is replaced by another within the
request's deadline. Whatever happens, also a cancel in the tick of a grant, the ledger gets back what was charged.
Knows no protocol: shells bring a `Carrier`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from gateway.carrier import Carrier, Leg, LegEnd
from gateway.outcome import CLIENT_GONE_STATUS, Outcome, Witness
from gateway.quotas.tab import Tab
from gateway.refusals import SAYINGS, status_of
from gateway.room import Room
from routing.placement import Placement
from routing.reading import owned
from routing.receipt import Attempt, show_attempt
from routing.refusal import Fault, Reason, Refused
from routing.request import Request
from routing.router import Router
from tenancy.promise import Promise, promise_of, relaxed
from tenancy.tenants import NOBODY, Caller
from tenancy.tier import Overload

OVERLOAD = frozenset({Reason.OVERLOADED, Reason.QUEUE_FULL})

REASON_OF_END = {
    LegEnd.UNREACHABLE: Reason.POD_UNREACHABLE,
    LegEnd.LOST: Reason.POD_LOST,
    LegEnd.TIMEOUT: Reason.POD_TIMEOUT,
    LegEnd.MALFORMED: Reason.POD_MALFORMED,
    LegEnd.BUSY: Reason.POD_BUSY,
    LegEnd.BROKEN: Reason.POD_BROKEN,
}


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often a request is tried."""

    deadline_s: float = 600.0
    """From arrival to the first byte: after it no other pod is tried."""
    attempts: int = 3
    attempts_when_broken: int = 2
    """A request that breaks a pod may be what breaks it: it gets one more pod, not the whole fleet."""


Health = Callable[[str, LegEnd], None]
"""Told of every attempt's pod and end; opens breakers."""

Look = Callable[[Request], Awaitable[Request]]
"""Gives a request back with what was seen of it, or as it was; takes no longer than it may."""


Smaller = Callable[[str], Request]
"""The same request to a smaller model; what is carried from then on asks for that one."""

Reserve = Callable[[Request, Caller], Awaitable[Tab]]
"""Asks the accounts of a caller for what a request is expected to take. Raises `Refused`."""


class Journey(Struct):
    """What is known of a request on its way. Becomes an `Outcome`."""

    request: Request
    caller: Caller
    promise: Promise
    trace: str | None
    started_s: float
    smaller: Smaller | None = None
    attempts: list[Attempt] = []
    last: Placement | None = None
    leg: Leg | None = None
    refusal: Refused | None = None
    queued_s: float = 0.0
    """How long it waited for an engine that might take it."""
    shared: str | None = None

    @property
    def was_served(self) -> bool:
        """Whether a pod has worked for it: has begun to answer, or was at it when the client left."""
        leg = self.leg
        if leg is not None and leg.end is LegEnd.ANSWERED:
            return leg.status < 400
        has_left = leg is None and self.refusal is None
        return self.last is not None and (has_left or self.last.first_token_s is not None)

    def outcome(self, now_s: float, at_s: float) -> Outcome:
        """The end of the journey, however it came."""
        leg, refusal = self.leg, self.refusal
        first_s = self.last.first_token_s if self.last else None
        return Outcome(
            request=self.request,
            at_s=at_s,
            tenant=self.caller.tenant.name,
            trace=self.trace,
            status=self._status(),
            reason=refusal.reason if refusal else None,
            detail=refusal.message if refusal else leg.detail if leg else "client gone",
            finish_reason=leg.finish_reason if leg else None,
            usage=leg.usage or leg.counted if leg else None,
            attempts=tuple(self.attempts),
            ttft_s=None if first_s is None else first_s - self.started_s,
            duration_s=now_s - self.started_s,
            decode_s=None if first_s is None else now_s - first_s,
            tier=self.promise.tier.name,
            key_id=self.caller.key_id,
            user=self.caller.user,
            queued_s=self.queued_s,
            promise_met=self._promise_met(now_s),
            group=self.caller.group,
            shared=self.shared,
        )

    def _promise_met(self, now_s: float) -> bool | None:
        """Whether it got what was promised; None where nothing was, or the client was to blame or did not wait."""
        promise, leg, last = self.promise, self.leg, self.last
        if not promise.is_bound or self.shared is not None:
            return None
        if self.refusal is not None:
            return None if SAYINGS[self.refusal.reason].fault is Fault.CLIENT else False
        if leg is None or last is None or leg.status >= 400:
            return None
        first_s = None if last.first_token_s is None else last.first_token_s - self.started_s
        tokens = leg.usage.completion_tokens // self.request.sequences if leg.usage is not None else 0
        return promise.is_kept(
            own_s=last.predicted.own_s, first_token_s=first_s, took_s=now_s - self.started_s, tokens=tokens
        )

    def _status(self) -> int:
        if self.refusal:
            return status_of(self.refusal.reason, anthropic=self.request.api.is_anthropic)
        return self.leg.status if self.leg else CLIENT_GONE_STATUS


class Passage:
    """Leads requests through. One per gateway process; holds no request's state."""

    def __init__(
        self,
        router: Router,
        *,
        health: Health,
        witnesses: Sequence[Witness],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        draw: Callable[[], float],
        patience: Patience,
        reserve: Reserve | None = None,
        room: Room | None = None,
    ) -> None:
        """`reserve` is asked where a caller has accounts; `room` is where requests wait, by default nowhere."""
        self._room = room or Room(router, clock=clock, draw=draw)
        self._reserve = reserve
        self._health = health
        self._witnesses = tuple(witnesses)
        self._clock = clock
        self._wall_clock = wall_clock
        self._patience = patience

    async def lead(
        self,
        request: Request,
        carrier: Carrier,
        *,
        caller: Caller = NOBODY,
        promise: Promise | None = None,
        trace: str | None = None,
        look: Look | None = None,
        smaller: Smaller | None = None,
    ) -> None:
        """Serve a request or refuse it. Raises only `asyncio.CancelledError`, when the client has gone.

        `promise` is what its tier promises, unless the request asks for more; `trace` is the W3C `traceparent` that
        came with it, for the log; `look` finds out what engines hold of it; `smaller` asks another model instead.
        """
        journey = Journey(request, caller, promise or promise_of(caller.tenant.tier), trace, self._clock(), smaller)
        tab: Tab | None = None
        try:
            if self._reserve is not None and caller.accounts:
                tab = await self._reserve(request, caller)
                carrier.open_tab(tab)
            if look is not None:
                journey.request = await look(request)
            await self._try_pods(journey, carrier)
            if tab is not None and journey.leg is not None:
                tab.settle(journey.leg.usage, journey.request.model)
        except Refused as refusal:
            journey.refusal = refusal
            carrier.refuse(refusal)
        except asyncio.CancelledError as cancel:
            # Who cancels may say why; a client that has gone says nothing.
            journey.refusal = next((why for why in cancel.args if isinstance(why, Refused)), None)
            raise
        finally:
            if tab is not None:
                tab.close(was_carried=bool(journey.attempts), was_served=journey.was_served)
            if journey.request.sight is not None:
                journey.request.sight.watch.over()
            self._note(journey)

    def turn_away(
        self, request: Request, refusal: Refused, *, caller: Caller = NOBODY, trace: str | None = None
    ) -> None:
        """Take note of a request that a shell refused before it could be led."""
        promise = promise_of(caller.tenant.tier)
        self._note(Journey(request, caller, promise, trace, self._clock(), refusal=refusal))

    def note_shared(
        self,
        request: Request,
        shared: str,
        *,
        started_s: float,
        leg: Leg | None,
        refusal: Refused | None,
        caller: Caller,
        trace: str | None,
    ) -> None:
        """Take note of a request that was told what another was told; `leg` is None where its client did not wait."""
        promise = promise_of(caller.tenant.tier)
        self._note(Journey(request, caller, promise, trace, started_s, leg=leg, refusal=refusal, shared=shared))

    def _note(self, journey: Journey) -> None:
        outcome = journey.outcome(self._clock(), self._wall_clock())
        for witness in self._witnesses:
            witness(outcome)

    async def _try_pods(self, journey: Journey, carrier: Carrier) -> None:
        avoid: frozenset[str] = frozenset()
        while True:
            placement = await self._place(journey, avoid)
            leg = await self._carry(journey, placement, carrier)
            if leg.end is LegEnd.ANSWERED:
                return
            avoid |= {placement.engine.pod}
            if leg.begun or not self._may_try_again(journey, leg):
                raise _refusal_for(leg)

    async def _place(self, journey: Journey, avoid: frozenset[str]) -> Placement:
        asked_s = self._clock()
        try:
            came_s = journey.started_s
            return await self._room.place(journey.request, journey.caller, journey.promise, avoid, came_s)
        except Refused as refusal:
            if journey.leg is not None:
                # Nobody else may serve it: what the last pod said tells the client more than "no pod is ready".
                raise _refusal_for(journey.leg) from None
            if refusal.reason not in OVERLOAD or not _ask_for_less(journey):
                raise
        finally:
            journey.queued_s += self._clock() - asked_s
        return await self._place(journey, avoid)

    async def _carry(self, journey: Journey, placement: Placement, carrier: Carrier) -> Leg:
        journey.last, journey.leg = placement, None
        leg: Leg | None = None
        try:
            leg = await carrier.carry(placement, self._deadline(journey))
        finally:
            self._settle(journey, placement, leg)
        return leg

    def _settle(self, journey: Journey, placement: Placement, leg: Leg | None) -> None:
        """Give back what was charged and learn from what was seen. `leg` is None where the client has gone."""
        now_s = self._clock()
        if leg is not None and leg.end is LegEnd.ANSWERED:
            stored = owned(leg.response_id, journey.caller.tenant.name) if leg.response_id else None
            placement.settle(leg.usage, now_s, answer=leg.answer, response_id=stored)
        if journey.promise.is_bound:
            self._room.settle(placement, leg.usage if leg else None)
        placement.release(now_s)
        journey.leg = leg
        journey.attempts.append(show_attempt(placement, leg.end if leg else "client_gone", leg.usage if leg else None))
        if leg is not None:
            self._health(placement.engine.pod, leg.end)

    def _may_try_again(self, journey: Journey, leg: Leg) -> bool:
        most = self._patience.attempts_when_broken if leg.end is LegEnd.BROKEN else self._patience.attempts
        return len(journey.attempts) < most and self._clock() < self._deadline(journey)

    def _deadline(self, journey: Journey) -> float:
        return journey.started_s + self._patience.deadline_s


def _ask_for_less(journey: Journey) -> bool:
    """Whether there is less to ask for, where the tenant would rather have that than nothing. Each kind once."""
    tenant, request, promise = journey.caller.tenant, journey.request, journey.promise
    if tenant.on_overload is Overload.RELAX and tenant.relaxed is not None and promise.tier is tenant.tier:
        journey.promise = relaxed(promise, tenant.relaxed)
        journey.request = replace(request, priority=tenant.relaxed.priority)
        return True
    model = tenant.downgrades.get(request.model)
    if tenant.on_overload is not Overload.DOWNGRADE or model is None or journey.smaller is None:
        return False
    if request.downgraded_from is not None:
        return False
    if request.sight is not None:
        request.sight.watch.over()
    journey.request = replace(journey.smaller(model), downgraded_from=request.model)
    return True


def _refusal_for(leg: Leg) -> Refused:
    reason = REASON_OF_END[leg.end]
    return Refused(reason, leg.detail or f"The pod that served this request is gone ({leg.end}).", retry_after_s=1.0)
