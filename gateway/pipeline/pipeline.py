"""The request pipeline: from a request that was read to its record.

Reserve what it is expected to take on its caller's accounts, place it (choose an engine and charge the ledger, now or
when admission allows it), have its transport carry it, settle. A pod that fails is replaced by another one while the
request's limits and the retry budget allow it, also in the middle of a stream. Whatever happens, a cancellation in the
tick of a grant included, the ledger gets back what was charged. Knows no protocol: front ends bring a `Carrier`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from zlib import crc32

from msgspec.structs import replace

from gateway.limits.accounts import Tab
from gateway.pipeline.admission_queue import NO_POD_LOOK_S, Room
from gateway.pipeline.attempt import Leg, LegEnd, Patience, refusal_for
from gateway.pipeline.record import HTTP, Outcome, Shell, Witness
from gateway.pipeline.request_context import Look, RequestContext, Smaller
from gateway.pipeline.transport import Carrier
from gateway.runtime.guard import report
from routing.decision.placement import Placement
from routing.decision.receipt import Attempt, show_attempt
from routing.decision.router import Router
from routing.eligible import Fallback
from routing.pairing.prefill_side import PrefillSide
from routing.reading import owned
from routing.rejection import Reason, Refused
from routing.request import Request
from routing.retries import Budget, Try
from tenancy.objective import NO_PROMISE, Overload, Promise, promise_of, relaxed
from tenancy.tenants import NOBODY, Caller

Reserve = Callable[[Request, Caller], Awaitable[Tab]]
"""Reserves what a request is expected to take on its caller's accounts. Raises `Refused`."""

Health = Callable[[str, LegEnd], bool | None]
"""Receives pod URL and end of every attempt; opens breakers. Returns whether the pod was failing others before that,
None where that is unknown.
"""

CarryPair = Callable[[Placement, PrefillSide, Carrier, float], Awaitable[Leg]]
"""Like `Carrier.carry`, of a request whose prompt another engine computes."""

OVERLOAD = frozenset({Reason.OVERLOADED, Reason.QUEUE_FULL})

YIELDS, SPREAD = 0.4, 0.4
"""Share of the resume time in which a cut stream waits at the rank of its tier, and up to how much more of it: streams
that lost one pod together do not all stop waiting at once.
"""

MAX_PAIR_FALLBACKS = 2
"""After so many failed pairs a request is prefilled where it is answered."""

DECODE_PODS_OWN = frozenset({None, Fallback.DECODE_FAILED})
"""Fallbacks with which an attempt's end is that of the pod that was to answer, as if there had been no pair."""

WITHOUT_KV = frozenset({Fallback.TRANSFER_STALLED, Fallback.TRANSFER_FAILED})
"""Fallbacks that take so long that the request is not paired again."""


class RequestHook:
    """A feature that takes part in one request, such as a cascade: absent where no feature does."""

    async def serve(self, passage: Passage, context: RequestContext, carrier: Carrier) -> None:
        """Get the request answered, by the stages of the pipeline. Raises `Refused`."""
        await passage.try_pods(context, carrier)

    def step_down(self) -> Request | None:
        """Return the request to a cheaper model, to be sent under overload; None where there is none."""
        return None

    def finish(self, context: RequestContext) -> None:
        """Add to the record of a request that has ended, however it did."""


class Passage:
    """One per gateway process; holds no request's state."""

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
        carry_pair: CarryPair | None = None,
    ) -> None:
        """`reserve` is called for callers with accounts; `room`: the admission queue, by default one in which no
        request waits; `carry_pair`: by default the decode engine's own next hop sees to the prefill.
        """
        self._room = room or Room(router, clock=clock, draw=draw)
        self._health = health
        self._witnesses = tuple(witnesses)
        self._clock = clock
        self.wall_clock = wall_clock
        self._limits, self._retries = patience, patience.retries
        self._reserve = reserve
        self._carry_pair = carry_pair
        self.budget = Budget(patience.retries, among=patience.among)

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
        shell: Shell = HTTP,
        hook: RequestHook | None = None,
    ) -> None:
        """Serve a request or reject it. Raises only `asyncio.CancelledError`, when the client has gone.

        `promise`: its objective, by default that of its tier; `trace`: the W3C `traceparent` that came with it, for
        the log; `look` looks up what engines have cached of it; `smaller` sends it to another model instead; `hook`:
        a feature that leads it, where `request` is the first that the feature asks for.
        """
        context = self._begin(request, caller, trace, shell, promise)
        context.look, context.smaller = look, smaller
        tab: Tab | None = None
        self.budget.begin()
        try:
            if self._reserve is not None and caller.accounts:
                tab = await self._reserve(request, caller)
                carrier.open_tab(tab)
            if look is not None:
                context.request = await look(request)
            if hook is None:
                await self.try_pods(context, carrier)
            else:
                context.step_down = hook.step_down
                await hook.serve(self, context, carrier)
            if tab is not None and context.leg is not None:
                tab.settle(context.usage, context.request.model)
        except Refused as refusal:
            context.refusal = refusal
            carrier.refuse(refusal)
        except asyncio.CancelledError as cancel:
            context.refusal = _cause_of(cancel)
            raise
        finally:
            context.has_ended = True
            self.budget.end()
            if tab is not None:
                tab.close(was_carried=bool(context.record.attempts), was_served=context.was_served)
            context.end_lookup()
            if hook is not None:
                hook.finish(context)
            self._note(context)

    async def run_errand(
        self,
        request: Request,
        run: Callable[[], Awaitable[Leg]],
        refuse: Callable[[Refused], None],
        *,
        caller: Caller = NOBODY,
        trace: str | None = None,
    ) -> None:
        """Run a request about a stored response: it counts against its caller's limits and computes no tokens.

        Nothing is placed, learned or retried. Raises only `asyncio.CancelledError`, when the client has gone.
        """
        context = self._begin(request, caller, trace)
        tab: Tab | None = None
        try:
            if self._reserve is not None and caller.accounts:
                tab = await self._reserve(request, caller)
            leg = await run()
            # Its usage was counted when it was computed.
            context.leg = Leg(leg.end, leg.status, detail=leg.detail)
            if leg.end is not LegEnd.ANSWERED:
                raise refusal_for(leg)
        except Refused as refusal:
            context.refusal = refusal
            refuse(refusal)
        except asyncio.CancelledError as cancel:
            context.refusal = _cause_of(cancel)
            raise
        finally:
            if tab is not None:
                tab.close(was_carried=True, was_served=False)
            self._note(context)

    def turn_away(
        self,
        request: Request,
        refusal: Refused,
        *,
        caller: Caller = NOBODY,
        trace: str | None = None,
        shell: Shell = HTTP,
    ) -> None:
        """Record a request that a front end rejected before the pipeline."""
        context = self._begin(request, caller, trace, shell)
        context.refusal = refusal
        self._note(context)

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
        """Record a request that received the response to another; `leg` is None where its client did not wait."""
        context = self._begin(request, caller, trace)
        context.started_s, context.leg, context.refusal, context.record.shared = started_s, leg, refusal, shared
        self._note(context)

    def _begin(
        self,
        request: Request,
        caller: Caller,
        trace: str | None,
        shell: Shell = HTTP,
        promise: Promise | None = None,
    ) -> RequestContext:
        record = Outcome(trace=trace, shell=shell.name, mode=shell.mode)
        return RequestContext(request, caller, promise or promise_of(caller.tenant.tier), self._clock(), record)

    def _note(self, context: RequestContext) -> None:
        outcome = context.finish(self._clock(), self.wall_clock())
        for witness in self._witnesses:
            try:
                witness(outcome)
            except Exception as error:  # noqa: BLE001 - what one cannot count does not concern the others
                report("witness", error)

    # -- stages ----------------------------------------------------------------------------------------------------

    async def try_pods(self, context: RequestContext, carrier: Carrier) -> None:
        """Place and attempt a request until a pod has answered it. Raises `Refused` where none does."""
        leg = await self.attempt(context, await self.place(context), carrier)
        while leg.end is not LegEnd.ANSWERED:
            if not self.may_try_again(context, leg):
                raise refusal_for(leg)
            leg = await self.attempt(context, await self.place(context), carrier)

    async def place(self, context: RequestContext) -> Placement:
        """Place a request on an engine, now or when one may take it; under overload as its tenant wants it instead.

        One that has lost its pod was admitted once: it waits at the rank of its tier, before what is new there, and is
        served late rather than rejected. Raises `Refused`.
        """
        if context.cut_s is not None:
            return await self._place_rest(context, context.cut_s)
        leg = context.leg
        has_lost_engine = leg is not None and leg.end.has_lost_engine
        while True:
            started_s, promise = self._clock(), context.promise
            late_by_s = started_s + promise.longest_wait_s if has_lost_engine and promise.is_bound else None
            try:
                return await self._room.place(context, promise, context.avoid, context.started_s, late_by_s=late_by_s)
            except Refused as refusal:
                if leg is not None and not (refusal.reason in OVERLOAD and has_lost_engine):
                    # No other pod may serve it: how the last one failed says more than "no pod is ready".
                    raise refusal_for(leg) from None
                if refusal.reason not in OVERLOAD or not _ask_for_less(context):
                    raise
            finally:
                context.record.queued_s += self._clock() - started_s

    async def _place_rest(self, context: RequestContext, cut_s: float) -> Placement:
        """Place the remaining answer of a cut stream: for some of its time at the rank of its tier, then at once.

        Late for others is better than cut for its client. Where no other pod is left, one that has failed it may serve
        it all the same: it may have recovered.
        """
        avoid, promise, resume_s = context.avoid, context.promise, self._limits.resume_s
        by_s = cut_s + resume_s
        yields_by_s = cut_s + (YIELDS + SPREAD * _spread(context.request.id)) * resume_s
        while True:
            now_s = self._clock()
            try:
                return await self._room.place(context, promise, avoid, cut_s, late_by_s=yields_by_s)
            except Refused as refusal:
                if refusal.reason in OVERLOAD and promise.is_bound:
                    promise = NO_PROMISE
                    continue
                if context.leg is None or refusal.reason is not Reason.NO_POD_READY or now_s >= by_s:
                    raise refusal_for(context.leg) if context.leg else refusal from None
            avoid = frozenset()
            await asyncio.sleep(NO_POD_LOOK_S)

    async def attempt(self, context: RequestContext, placement: Placement, carrier: Carrier) -> Leg:
        """Carry a request to where it was placed, and settle. Raises only `asyncio.CancelledError`."""
        context.last, context.leg = placement, None
        leg: Leg | None = None
        try:
            side, by_s = placement.prefill, self._deadline(context)
            if side is None or self._carry_pair is None:
                leg = await carrier.carry(placement, by_s)
            else:
                leg = await self._carry_pair(placement, side, carrier, by_s)
        finally:
            self._settle(context, placement, leg)
        return leg

    def _settle(self, context: RequestContext, placement: Placement, leg: Leg | None) -> None:
        """Give back what was charged and learn from the result. `leg` is None where the client has gone."""
        now_s, record = self._clock(), context.record
        try:
            if leg is not None and leg.end is LegEnd.ANSWERED:
                stored = owned(leg.response_id, context.caller.tenant.name) if leg.response_id else None
                placement.settle(leg.usage, now_s, answer=leg.answer, response_id=stored)
        finally:
            try:
                if context.promise.is_bound:
                    self._room.settle(placement, leg.usage if leg else None)
            finally:
                placement.release(now_s)
        if leg is None:
            record.attempts += (show_attempt(placement, "client_gone", None, placement.fallback),)
            return
        context.end_attempt(placement, leg, now_s)
        fallback, was_failing = leg.fallback or placement.fallback, self._report_health(placement, leg)
        record.attempts += (show_attempt(placement, leg.end, leg.usage, fallback, was_failing=was_failing),)
        if leg.end is LegEnd.ANSWERED and leg.blames is None and leg.fallback is None:
            return
        if leg.blames is not None:
            context.avoid |= {leg.blames}
        elif leg.fallback in DECODE_PODS_OWN and leg.end is not LegEnd.ANSWERED:
            context.avoid |= {placement.engine.pod}
        if leg.fallback in WITHOUT_KV or sum(map(_is_failed_pair, context.tried)) >= MAX_PAIR_FALLBACKS:
            context.request = replace(context.request, is_whole=True)

    def _report_health(self, placement: Placement, leg: Leg) -> bool:
        """Report how its pods did. Returns whether the one that was to answer was failing others before."""
        side = placement.prefill
        if side is not None and side.done_s is not None:
            self._health(side.engine.pod, LegEnd.ANSWERED)
        if leg.blames is not None:
            self._health(leg.blames, leg.end)
            return False
        return leg.fallback in DECODE_PODS_OWN and bool(self._health(placement.engine.pod, leg.end))

    def may_try_again(self, context: RequestContext, leg: Leg) -> bool:
        """Return whether another pod may answer instead, or resume the stream, after an attempt that failed.

        Takes the attempt out of the retry budget.
        """
        is_in_time = self._clock() < self._deadline(context)
        if leg.begun or context.cuts:
            # Where the prefill half of a pair has failed a remaining answer, no pod was asked for that: it stands.
            is_left = leg.rest is not None or not leg.begun
            may = is_left and context.cuts <= self._retries.cuts and is_in_time
            return may and self.budget.take(Try.CUT)
        asked = [attempt for attempt in context.tried if _counts(attempt)]
        failed = sum(not attempt.was_failing for attempt in asked)
        if not (self._retries.may_ask_again(failed, len(asked)) and is_in_time):
            return False
        # An engine that was not reached was asked for nothing: the next attempt is still a first one.
        if leg.end is LegEnd.UNREACHABLE:
            return True
        return self.budget.take(Try.MOVE if leg.end.is_engine_gone else Try.AGAIN)

    def _deadline(self, context: RequestContext) -> float:
        """Return the loop time by which the first byte has to come."""
        if context.cut_s is not None:
            return context.cut_s + self._limits.resume_s
        return context.started_s + self._limits.deadline_s


def _cause_of(cancel: asyncio.CancelledError) -> Refused | None:
    """Return the rejection that a request was cancelled with; None where its client has gone."""
    return next((why for why in cancel.args if isinstance(why, Refused)), None)


def _ask_for_less(context: RequestContext) -> bool:
    """Replace objective or model by what its tenant prefers to a rejection. Returns False where there is none left."""
    tenant, request, promise = context.caller.tenant, context.request, context.promise
    if tenant.on_overload is Overload.RELAX and tenant.relaxed is not None and promise.tier is tenant.tier:
        context.promise = relaxed(promise, tenant.relaxed)
        context.request = replace(request, priority=tenant.relaxed.priority)
        return True
    if tenant.on_overload is not Overload.DOWNGRADE:
        return False
    smaller = _smaller(context) if context.step_down is None else context.step_down()
    if smaller is None:
        return False
    context.end_lookup()
    context.request = replace(smaller, downgraded_from=request.model)
    return True


def _smaller(context: RequestContext) -> Request | None:
    """Return the request to the model that its tenant downgrades to, once; None where there is none."""
    request = context.request
    model = context.caller.tenant.downgrades.get(request.model)
    if model is None or context.smaller is None or request.downgraded_from is not None:
        return None
    return context.smaller(model)


def _spread(request_id: str) -> float:
    """Return a number in [0, 1) that differs between requests and is always the same for one."""
    return crc32(request_id.encode()) / (1 << 32)


def _is_failed_pair(attempt: Attempt) -> bool:
    return attempt.prefill is not None and attempt.fallback is not None


def _counts(attempt: Attempt) -> bool:
    """Return whether it is one of the few attempts of a request: not where a pair failed by its other half, nor where
    no pod was reached.
    """
    if not LegEnd(attempt.ended).is_counted:
        return False
    return attempt.prefill is None or attempt.fallback in DECODE_PODS_OWN
