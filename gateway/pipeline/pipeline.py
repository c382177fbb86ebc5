"""The spine: leads one request from its arrival to its receipt.

Choose and charge (`placing.py`), carry and settle (`carrying.py`); a pod that fails before the client saw a byte is
replaced by another within the request's deadline. Knows no protocol: shells bring a `Carrier`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from gateway.attempts.attempt import Carrier, Leg, LegEnd
from gateway.attempts.outcome import HTTP, Shell, Witness
from gateway.cascades.cascade_run import CascadeRun
from gateway.limits.accounts import RequestMeter
from gateway.pairs.pairs import Pairs
from gateway.pipeline.admission_queue import Room
from gateway.pipeline.attempt_runner import REASON_OF_END, Carrying, Health, Patience, refusal_for
from gateway.pipeline.cascading import CascadeRunner
from gateway.pipeline.placement import Placing
from gateway.pipeline.request_context import Journey, Smaller
from gateway.runtime.guard import report_exception
from routing.decision.router import Router
from routing.rejection import RequestRejected
from routing.request import Request
from routing.retries import RetryBudget
from tenancy.objective import LatencyObjective, objective_of
from tenancy.tenants import ANONYMOUS_CALLER, Caller

Look = Callable[[Request], Awaitable[Request]]
"""Gives a request back with what was seen of it, or as it was; takes no longer than it may."""

Reserve = Callable[[Request, Caller], Awaitable[RequestMeter]]
"""Asks the accounts of a caller for what a request is expected to take. Raises `RequestRejected`."""


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
        pairs: Pairs | None = None,
    ) -> None:
        """`reserve` is asked where a caller has accounts; `room` is where requests wait, by default nowhere; `pairs`
        carries pairs of pods, by default such as need nothing asked of them beforehand.
        """
        room = room or Room(router, clock=clock, draw=draw)
        self._placing = Placing(room, clock, resume_s=patience.resume_s)
        pairs = pairs or Pairs(router.fleet, clock=clock)
        self.budget = RetryBudget(patience.retries, among=patience.among)
        self._carrying = Carrying(room, health=health, clock=clock, patience=patience, pairs=pairs, budget=self.budget)
        self._climbing = CascadeRunner(self._placing, self._carrying)
        self._reserve = reserve
        self._witnesses = tuple(witnesses)
        self._clock = clock
        self.wall_clock = wall_clock

    async def lead(
        self,
        request: Request,
        carrier: Carrier,
        *,
        caller: Caller = ANONYMOUS_CALLER,
        promise: LatencyObjective | None = None,
        trace: str | None = None,
        look: Look | None = None,
        smaller: Smaller | None = None,
        shell: Shell = HTTP,
        climb: CascadeRun | None = None,
    ) -> None:
        """Serve a request or refuse it. Raises only `asyncio.CancelledError`, when the client has gone.

        `promise` is what its tier promises, unless the request asks for more; `trace` is the W3C `traceparent` that
        came with it, for the log; `look` finds out what engines hold of it; `smaller` asks another model instead;
        `climb` is its way up a ladder, where `request` is that of the first rung.
        """
        journey = Journey(request, caller, promise or objective_of(caller.tenant.tier), trace, self._clock(), smaller)
        journey.shell, journey.cascade_run = shell, climb
        tab: RequestMeter | None = None
        self.budget.begin()
        try:
            if self._reserve is not None and caller.accounts:
                tab = await self._reserve(request, caller)
                carrier.open_tab(tab)
            if look is not None:
                journey.request = await look(request)
            await (self._try_pods if climb is None else self._climbing.run)(journey, carrier, look)
            if tab is not None and journey.leg is not None:
                tab.settle(journey.usage, journey.request.model)
        except RequestRejected as refusal:
            journey.refusal = refusal
            carrier.refuse(refusal)
        except asyncio.CancelledError as cancel:
            # Who cancels may say why; a client that has gone says nothing.
            journey.refusal = next((why for why in cancel.args if isinstance(why, RequestRejected)), None)
            raise
        finally:
            self.budget.end()
            if tab is not None:
                tab.close(was_carried=bool(journey.attempts), was_served=journey.was_served)
            if journey.request.lookup is not None:
                journey.request.lookup.listener.over()
            if climb is not None:
                climb.settle(journey)
            self._note(journey)

    def turn_away(
        self,
        request: Request,
        refusal: RequestRejected,
        *,
        caller: Caller = ANONYMOUS_CALLER,
        trace: str | None = None,
        shell: Shell = HTTP,
    ) -> None:
        """Take note of a request that a shell refused before it could be led."""
        promise = objective_of(caller.tenant.tier)
        self._note(Journey(request, caller, promise, trace, self._clock(), refusal=refusal, shell=shell))

    def note_shared(
        self,
        request: Request,
        shared: str,
        *,
        started_s: float,
        leg: Leg | None,
        refusal: RequestRejected | None,
        caller: Caller,
        trace: str | None,
    ) -> None:
        """Take note of a request that was told what another was told; `leg` is None where its client did not wait."""
        promise = objective_of(caller.tenant.tier)
        self._note(Journey(request, caller, promise, trace, started_s, leg=leg, refusal=refusal, shared=shared))

    async def run_errand(
        self,
        request: Request,
        run: Callable[[], Awaitable[Leg]],
        refuse: Callable[[RequestRejected], None],
        *,
        caller: Caller = ANONYMOUS_CALLER,
        trace: str | None = None,
    ) -> None:
        """Have an engine asked for what it has stored: a request against its caller's limits that computes no tokens.

        Nothing is placed, learned or tried again. Raises only `asyncio.CancelledError`, when the client has gone.
        """
        journey = Journey(request, caller, objective_of(caller.tenant.tier), trace, self._clock())
        tab: RequestMeter | None = None
        try:
            if self._reserve is not None and caller.accounts:
                tab = await self._reserve(request, caller)
            leg = await run()
            # Its usage was counted when it was computed.
            journey.leg = Leg(leg.end, leg.status, detail=leg.detail)
            if leg.end is not LegEnd.ANSWERED:
                raise RequestRejected(REASON_OF_END[leg.end], leg.detail, retry_after_s=1.0)
        except RequestRejected as refusal:
            journey.refusal = refusal
            refuse(refusal)
        except asyncio.CancelledError as cancel:
            journey.refusal = next((why for why in cancel.args if isinstance(why, RequestRejected)), None)
            raise
        finally:
            if tab is not None:
                tab.close(was_carried=True, was_served=False)
            self._note(journey)

    def _note(self, journey: Journey) -> None:
        outcome = journey.outcome(self._clock(), self.wall_clock())
        for witness in self._witnesses:
            try:
                witness(outcome)
            except Exception as error:  # noqa: BLE001 - what one cannot count is no matter of the others
                report_exception("witness", error)

    async def _try_pods(self, journey: Journey, carrier: Carrier, _: Look | None = None) -> None:
        while True:
            placement = await self._placing.place(journey)
            leg = await self._carrying.carry(journey, placement, carrier)
            if leg.end is LegEnd.ANSWERED:
                return
            if not self._carrying.may_try_again(journey, leg):
                raise refusal_for(leg)
