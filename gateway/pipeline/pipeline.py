"""The spine: leads one request from its arrival to its receipt.

Choose and charge (`placing.py`), carry and settle (`carrying.py`); a pod that fails before the client saw a byte is
replaced by another within the request's deadline. Knows no protocol: shells bring a `AttemptTransport`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from gateway.attempts.attempt import AttemptResult, AttemptStatus, AttemptTransport
from gateway.attempts.outcome import HTTP, Frontend, OutcomeListener
from gateway.cascades.cascade_run import CascadeRun
from gateway.limits.accounts import RequestMeter
from gateway.pairs.pairs import PairTransport
from gateway.pipeline.admission_queue import AdmissionQueue
from gateway.pipeline.attempt_runner import REASON_OF_STATUS, AttemptLimits, AttemptRunner, Health, rejection_for
from gateway.pipeline.cascading import CascadeRunner
from gateway.pipeline.placement import PlacementStage
from gateway.pipeline.request_context import MakeDowngraded, RequestContext
from gateway.runtime.guard import report_exception
from routing.decision.router import Router
from routing.rejection import RequestRejected
from routing.request import Request
from routing.retries import RetryBudget
from tenancy.objective import LatencyObjective, objective_of
from tenancy.tenants import ANONYMOUS_CALLER, Caller

PrefixLookup = Callable[[Request], Awaitable[Request]]
"""Gives a request back with what was seen of it, or as it was; takes no longer than it may."""

Reserve = Callable[[Request, Caller], Awaitable[RequestMeter]]
"""Asks the accounts of a caller for what a request is expected to take. Raises `RequestRejected`."""


class RequestPipeline:
    """Leads requests through. One per gateway process; holds no request's state."""

    def __init__(
        self,
        router: Router,
        *,
        health: Health,
        witnesses: Sequence[OutcomeListener],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        draw: Callable[[], float],
        patience: AttemptLimits,
        reserve: Reserve | None = None,
        room: AdmissionQueue | None = None,
        pairs: PairTransport | None = None,
    ) -> None:
        """`reserve` is asked where a caller has accounts; `room` is where requests wait, by default nowhere; `pairs`
        carries pairs of pods, by default such as need nothing asked of them beforehand.
        """
        room = room or AdmissionQueue(router, clock=clock, draw=draw)
        self._placement = PlacementStage(room, clock, resume_s=patience.resume_s)
        pairs = pairs or PairTransport(router.fleet, clock=clock)
        self.budget = RetryBudget(patience.retries, among=patience.processes)
        self._attempts = AttemptRunner(
            room, health=health, clock=clock, patience=patience, pairs=pairs, budget=self.budget
        )
        self._cascade_runner = CascadeRunner(self._placement, self._attempts)
        self._reserve = reserve
        self._observers = tuple(witnesses)
        self._clock = clock
        self.wall_clock = wall_clock

    async def handle_request(
        self,
        request: Request,
        carrier: AttemptTransport,
        *,
        caller: Caller = ANONYMOUS_CALLER,
        promise: LatencyObjective | None = None,
        trace: str | None = None,
        look: PrefixLookup | None = None,
        smaller: MakeDowngraded | None = None,
        shell: Frontend = HTTP,
        climb: CascadeRun | None = None,
    ) -> None:
        """Serve a request or refuse it. Raises only `asyncio.CancelledError`, when the client has gone.

        `promise` is what its tier promises, unless the request asks for more; `trace` is the W3C `traceparent` that
        came with it, for the log; `look` finds out what engines hold of it; `smaller` asks another model instead;
        `climb` is its way up a ladder, where `request` is that of the first rung.
        """
        journey = RequestContext(
            request, caller, promise or objective_of(caller.tenant.tier), trace, self._clock(), smaller
        )
        journey.frontend, journey.cascade_run = shell, climb
        tab: RequestMeter | None = None
        self.budget.begin()
        try:
            if self._reserve is not None and caller.accounts:
                tab = await self._reserve(request, caller)
                carrier.open_meter(tab)
            if look is not None:
                journey.request = await look(request)
            await (self._try_pods if climb is None else self._cascade_runner.run)(journey, carrier, look)
            if tab is not None and journey.result is not None:
                tab.settle(journey.usage, journey.request.model)
        except RequestRejected as refusal:
            journey.rejection = refusal
            carrier.reject(refusal)
        except asyncio.CancelledError as cancel:
            # Who cancels may say why; a client that has gone says nothing.
            journey.rejection = next((why for why in cancel.args if isinstance(why, RequestRejected)), None)
            raise
        finally:
            self.budget.end()
            if tab is not None:
                tab.close(was_carried=bool(journey.attempts), was_served=journey.reached_engine)
            if journey.request.lookup is not None:
                journey.request.lookup.listener.over()
            if climb is not None:
                climb.settle(journey)
            self._record(journey)

    def record_rejection(
        self,
        request: Request,
        refusal: RequestRejected,
        *,
        caller: Caller = ANONYMOUS_CALLER,
        trace: str | None = None,
        shell: Frontend = HTTP,
    ) -> None:
        """Take note of a request that a shell refused before it could be led."""
        promise = objective_of(caller.tenant.tier)
        self._record(RequestContext(request, caller, promise, trace, self._clock(), rejection=refusal, frontend=shell))

    def record_coalesced(
        self,
        request: Request,
        shared: str,
        *,
        started_s: float,
        leg: AttemptResult | None,
        refusal: RequestRejected | None,
        caller: Caller,
        trace: str | None,
    ) -> None:
        """Take note of a request that was told what another was told; `leg` is None where its client did not wait."""
        promise = objective_of(caller.tenant.tier)
        self._record(
            RequestContext(
                request, caller, promise, trace, started_s, result=leg, rejection=refusal, coalesced_with=shared
            )
        )

    async def run_pinned(
        self,
        request: Request,
        run: Callable[[], Awaitable[AttemptResult]],
        refuse: Callable[[RequestRejected], None],
        *,
        caller: Caller = ANONYMOUS_CALLER,
        trace: str | None = None,
    ) -> None:
        """Have an engine asked for what it has stored: a request against its caller's limits that computes no tokens.

        Nothing is placed, learned or tried again. Raises only `asyncio.CancelledError`, when the client has gone.
        """
        journey = RequestContext(request, caller, objective_of(caller.tenant.tier), trace, self._clock())
        tab: RequestMeter | None = None
        try:
            if self._reserve is not None and caller.accounts:
                tab = await self._reserve(request, caller)
            leg = await run()
            # Its usage was counted when it was computed.
            journey.result = AttemptResult(leg.end, leg.status, detail=leg.detail)
            if leg.end is not AttemptStatus.ANSWERED:
                raise RequestRejected(REASON_OF_STATUS[leg.end], leg.detail, retry_after_s=1.0)
        except RequestRejected as refusal:
            journey.rejection = refusal
            refuse(refusal)
        except asyncio.CancelledError as cancel:
            journey.rejection = next((why for why in cancel.args if isinstance(why, RequestRejected)), None)
            raise
        finally:
            if tab is not None:
                tab.close(was_carried=True, was_served=False)
            self._record(journey)

    def _record(self, journey: RequestContext) -> None:
        outcome = journey.outcome(self._clock(), self.wall_clock())
        for witness in self._observers:
            try:
                witness(outcome)
            except Exception as error:  # noqa: BLE001 - what one cannot count is no matter of the others
                report_exception("witness", error)

    async def _try_pods(
        self, journey: RequestContext, carrier: AttemptTransport, _: PrefixLookup | None = None
    ) -> None:
        while True:
            placement = await self._placement.place(journey)
            leg = await self._attempts.run(journey, placement, carrier)
            if leg.end is AttemptStatus.ANSWERED:
                return
            if not self._attempts.may_retry(journey, leg):
                raise rejection_for(leg)
