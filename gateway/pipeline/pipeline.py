"""The request pipeline: from a request that was read to its record.

Reserve what it is expected to take on its caller's accounts, place it (choose an engine and charge the ledger, now or
when admission allows it), have its transport carry it, settle. A pod that fails is replaced by another one while the
request's limits and the retry budget allow it, also in the middle of a stream. Whatever happens, a cancellation in the
tick of a grant included, the ledger gets back what was charged. Knows no protocol: front ends bring an
`AttemptTransport`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from zlib import crc32

from msgspec.structs import replace

from gateway.limits.accounts import RequestMeter
from gateway.pipeline.admission_queue import NO_POD_POLL_S, AdmissionQueue
from gateway.pipeline.attempt import AttemptLimits, AttemptResult, AttemptStatus, rejection_for
from gateway.pipeline.failure_evidence import FailureEvidence
from gateway.pipeline.record import HTTP, Frontend, Outcome, OutcomeListener
from gateway.pipeline.request_context import MakeDowngraded, PrefixLookup, RequestContext
from gateway.pipeline.transport import AttemptTransport
from gateway.runtime.guard import report_exception
from gateway.runtime.trace_context import RequestTrace
from routing.decision.placement import AttemptReceipt, Placement, attempt_receipt
from routing.decision.router import Router
from routing.eligible import PairingFallback
from routing.pairing.prefill_side import PrefillPlacement
from routing.reading import scoped_name
from routing.rejection import Reason, RequestRejected
from routing.request import Request
from routing.retries import RetryBudget, RetryKind
from tenancy.objective import DEFAULT_TIER, NO_OBJECTIVE, LatencyObjective, OverloadAction, objective_of, relaxed
from tenancy.tenants import ANONYMOUS_CALLER, Caller

Reserve = Callable[[Request, Caller], Awaitable[RequestMeter]]
"""Reserves what a request is expected to take on its caller's accounts. Raises `RequestRejected`."""

Health = Callable[[str, AttemptStatus], bool | None]
"""Receives pod URL and end of every attempt; opens breakers. Returns whether the pod was failing others before that,
None where that is unknown.
"""

RunPairAttempt = Callable[[Placement, PrefillPlacement, AttemptTransport, float], Awaitable[AttemptResult]]
"""Like `AttemptTransport.run_attempt`, of a request whose prompt another engine computes."""

OVERLOAD = frozenset({Reason.OVERLOADED, Reason.QUEUE_FULL})

YIELDS, SPREAD = 0.4, 0.4
"""Share of the resume time in which a cut stream waits at the rank of its tier, and up to how much more of it: streams
that lost one pod together do not all stop waiting at once.
"""

MAX_FALLBACKS = 2
"""After so many failed pairs a request is prefilled where it is answered."""

DECODE_PODS_OWN = frozenset({None, PairingFallback.DECODE_FAILED})
"""Fallbacks with which an attempt's end is that of the pod that was to answer, as if there had been no pair."""

WITHOUT_KV = frozenset({PairingFallback.TRANSFER_STALLED, PairingFallback.TRANSFER_FAILED})
"""Fallbacks that take so long that the request is not paired again."""


class RequestHook:
    """A feature that takes part in one request, such as a cascade: absent where no feature does."""

    async def serve(self, pipeline: RequestPipeline, context: RequestContext, transport: AttemptTransport) -> None:
        """Get the request answered, by the stages of the pipeline. Raises `RequestRejected`."""
        await pipeline.try_pods(context, transport)

    def downgrade(self) -> Request | None:
        """Return the request to a cheaper model, to be sent under overload; None where there is none."""
        return None

    def finish(self, context: RequestContext) -> None:
        """Add to the record of a request that has ended, however it did."""


class RequestPipeline:
    """One per gateway process; holds no request's state."""

    def __init__(
        self,
        router: Router,
        *,
        health: Health,
        observers: Sequence[OutcomeListener],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        draw: Callable[[], float],
        limits: AttemptLimits,
        reserve: Reserve | None = None,
        queue: AdmissionQueue | None = None,
        run_pair: RunPairAttempt | None = None,
    ) -> None:
        """`reserve` is called for callers with accounts. By default no request waits in the `queue`, and without
        `run_pair` the decode engine's next hop sees to the prefill.
        """
        self._queue = queue or AdmissionQueue(router, clock=clock, draw=draw)
        self._health = health
        self.observers = tuple(observers)
        self._clock = clock
        self.wall_clock = wall_clock
        self._limits, self._retries = limits, limits.retries
        self._reserve = reserve
        self._run_pair = run_pair
        self._evidence = FailureEvidence()
        self.budget = RetryBudget(limits.retries, among=limits.processes)

    def report_health_to(self, health: Health) -> None:
        """Report the ends of attempts to another receiver from now on; called before the first request."""
        self._health = health

    def observe_first(self, observer: OutcomeListener) -> None:
        """Call an observer before all others, which read what it adds to the record."""
        self.observers = (observer, *self.observers)

    def observe(self, observer: OutcomeListener) -> None:
        """Call an observer with the record of each request that ends from now on."""
        self.observers = (*self.observers, observer)

    async def handle_request(
        self,
        request: Request,
        transport: AttemptTransport,
        *,
        caller: Caller = ANONYMOUS_CALLER,
        objective: LatencyObjective | None = None,
        trace: RequestTrace | None = None,
        lookup: PrefixLookup | None = None,
        make_downgraded: MakeDowngraded | None = None,
        frontend: Frontend = HTTP,
        hook: RequestHook | None = None,
    ) -> None:
        """Serve a request or reject it. Raises only `asyncio.CancelledError`, when the client has gone.

        `objective`: by default that of its tier; `trace`: the trace it belongs to;
        `lookup` looks up what engines have cached of it; `make_downgraded` sends it to another model instead; `hook`: a
        feature that takes part, where `request` is the first that the feature asks for.
        """
        context = self._begin(request, caller, trace, frontend, objective)
        context.lookup, context.make_downgraded = lookup, make_downgraded
        meter: RequestMeter | None = None
        self.budget.begin(caller.tenant.name)
        try:
            if self._reserve is not None and caller.accounts:
                meter = await self._reserve(request, caller)
                transport.open_meter(meter)
            if lookup is not None:
                context.request = await lookup(request)
            if hook is None:
                await self.try_pods(context, transport)
            else:
                context.downgrade = hook.downgrade
                await hook.serve(self, context, transport)
            if meter is not None and context.result is not None:
                _settle_meter(meter, context, context.result)
        except RequestRejected as rejection:
            context.rejection = rejection
            transport.reject(rejection)
        except asyncio.CancelledError as cancel:
            context.rejection = _cause_of(cancel)
            raise
        finally:
            context.has_ended = True
            self.budget.end()
            if meter is not None:
                meter.close(was_carried=bool(context.record.attempts), was_served=context.reached_engine)
            if context.request.lookup is not None:
                context.end_lookup()
            if hook is not None:
                hook.finish(context)
            self._record(context)

    async def run_pinned(
        self,
        request: Request,
        run: Callable[[], Awaitable[AttemptResult]],
        reject: Callable[[RequestRejected], None],
        *,
        caller: Caller = ANONYMOUS_CALLER,
        trace: RequestTrace | None = None,
    ) -> None:
        """Run a request about a stored response: it counts against its caller's limits and computes no tokens.

        Nothing is placed, learned or retried. Raises only `asyncio.CancelledError`, when the client has gone.
        """
        context = self._begin(request, caller, trace)
        meter: RequestMeter | None = None
        try:
            if self._reserve is not None and caller.accounts:
                meter = await self._reserve(request, caller)
            result = await run()
            # Its usage was counted when it was computed.
            context.result = AttemptResult(result.end, result.status, detail=result.detail)
            if result.end is not AttemptStatus.OK:
                raise rejection_for(result)
        except RequestRejected as rejection:
            context.rejection = rejection
            reject(rejection)
        except asyncio.CancelledError as cancel:
            context.rejection = _cause_of(cancel)
            raise
        finally:
            if meter is not None:
                meter.close(was_carried=True, was_served=False)
            self._record(context)

    def record_rejection(
        self,
        request: Request,
        rejection: RequestRejected,
        *,
        caller: Caller = ANONYMOUS_CALLER,
        trace: RequestTrace | None = None,
        frontend: Frontend = HTTP,
    ) -> None:
        """Record a request that a front end rejected before the pipeline."""
        context = self._begin(request, caller, trace, frontend)
        context.rejection = rejection
        self._record(context)

    def record_coalesced(
        self,
        request: Request,
        coalesced_with: str,
        *,
        started_s: float,
        result: AttemptResult | None,
        rejection: RequestRejected | None,
        caller: Caller,
        trace: RequestTrace | None,
    ) -> None:
        """Record a request that received the response to another; `result` is None where its client did not wait."""
        context = self._begin(request, caller, trace)
        context.started_s, context.result, context.rejection = started_s, result, rejection
        context.record.coalesced_with = coalesced_with
        self._record(context)

    def _begin(
        self,
        request: Request,
        caller: Caller,
        trace: RequestTrace | None,
        frontend: Frontend = HTTP,
        objective: LatencyObjective | None = None,
    ) -> RequestContext:
        record = Outcome(trace=trace, frontend=frontend.name, extproc_mode=frontend.mode)
        if trace is not None:
            record.trace_id = trace.trace_id
        if objective is None:
            tier = caller.tenant.tier
            objective = NO_OBJECTIVE if tier is DEFAULT_TIER else objective_of(tier)
        return RequestContext(request, caller, objective, self._clock(), record)

    def _record(self, context: RequestContext) -> None:
        outcome = context.finish(self._clock(), self.wall_clock())
        for observe in self.observers:
            try:
                observe(outcome)
            except Exception as error:  # noqa: BLE001 - what one cannot count does not concern the others
                report_exception("observer", error)

    # -- stages ----------------------------------------------------------------------------------------------------

    async def try_pods(self, context: RequestContext, transport: AttemptTransport) -> None:
        """Place and attempt a request until a pod has answered it. Raises `RequestRejected` where none does."""
        result = await self.attempt(context, await self.place(context), transport)
        while result.end is not AttemptStatus.OK:
            if not self.may_retry(context, result):
                raise rejection_for(result)
            result = await self.attempt(context, await self.place(context), transport)

    async def place(self, context: RequestContext) -> Placement:
        """Place a request on an engine, now or when one may take it; under overload as its tenant wants it instead.

        One that has lost its pod was admitted once: it waits at the rank of its tier, before what is new there, and is
        served late rather than rejected. Raises `RequestRejected`.
        """
        if context.cut_s is not None:
            return await self._place_continuation(context, context.cut_s)
        result = context.result
        has_lost_engine = result is not None and result.end.has_lost_engine
        while True:
            started_s, objective = self._clock(), context.objective
            late_by_s = started_s + objective.max_queue_s if has_lost_engine and objective.is_bound else None
            try:
                return await self._queue.place(
                    context, objective, context.avoid, context.started_s, late_by_s=late_by_s
                )
            except RequestRejected as rejection:
                if result is not None and not (rejection.reason in OVERLOAD and has_lost_engine):
                    # No other pod may serve it: how the last one failed says more than "no pod is ready".
                    raise rejection_for(result) from None
                if rejection.reason not in OVERLOAD or not _relax_or_downgrade(context):
                    raise
            finally:
                context.record.queue_wait_s += self._clock() - started_s

    async def _place_continuation(self, context: RequestContext, cut_s: float) -> Placement:
        """Place the remaining answer of a cut stream: for some of its time at the rank of its tier, then at once.

        Late for others is better than cut for its client. Where no other pod is left, one that has failed it may serve
        it all the same: it may have recovered.
        """
        avoid, objective, resume_s = context.avoid, context.objective, self._limits.resume_s
        by_s = cut_s + resume_s
        yields_by_s = cut_s + (YIELDS + SPREAD * _spread(context.request.id)) * resume_s
        while True:
            now_s = self._clock()
            try:
                return await self._queue.place(context, objective, avoid, cut_s, late_by_s=yields_by_s)
            except RequestRejected as rejection:
                if rejection.reason in OVERLOAD and objective.is_bound:
                    objective = NO_OBJECTIVE
                    continue
                if context.result is None or rejection.reason is not Reason.NO_POD_READY or now_s >= by_s:
                    raise rejection_for(context.result) if context.result else rejection from None
            avoid = frozenset()
            await asyncio.sleep(NO_POD_POLL_S)

    async def attempt(
        self, context: RequestContext, placement: Placement, transport: AttemptTransport
    ) -> AttemptResult:
        """Carry a request to where it was placed, and settle. Raises only `asyncio.CancelledError`."""
        context.last, context.result = placement, None
        if context.record.trace is not None:
            context.record.trace.attempt = len(context.record.attempts) + 1
        result: AttemptResult | None = None
        try:
            side, by_s = placement.prefill, self._deadline(context)
            if side is None or self._run_pair is None:
                result = await transport.run_attempt(placement, by_s)
            else:
                result = await self._run_pair(placement, side, transport, by_s)
        finally:
            self._settle(context, placement, result)
        return result

    def _settle(self, context: RequestContext, placement: Placement, result: AttemptResult | None) -> None:
        """Give back what was charged and learn from the result. `result` is None where the client has gone."""
        now_s, record = self._clock(), context.record
        placement.was_left = result is None
        try:
            if result is not None and result.end is AttemptStatus.OK:
                placement.is_untimed |= result.was_paused
                stored = scoped_name(result.response_id, context.caller.tenant.name) if result.response_id else None
                placement.settle(result.usage, now_s, answer=result.answer, response_id=stored)
        finally:
            try:
                if context.objective.is_bound:
                    self._queue.settle(placement, result.usage if result else None)
            finally:
                placement.release(now_s)
        if result is None:
            gone = attempt_receipt(
                placement,
                "client_gone",
                None,
                placement.fallback,
                kind=context.attempt_kind,
                arrived_s=context.started_s,
                ended_s=now_s,
            )
            record.attempts += (gone,)
            return
        context.end_attempt(placement, result, now_s)
        was_unhealthy = self._report_health(placement, result, context.caller.tenant.name)
        fallback = result.fallback or placement.fallback
        receipt = attempt_receipt(
            placement,
            result.end,
            result.usage,
            fallback,
            was_unhealthy=was_unhealthy,
            kind=context.attempt_kind,
            arrived_s=context.started_s,
            ended_s=now_s,
        )
        record.attempts += (receipt,)
        if result.end is AttemptStatus.OK and result.blames is None and result.fallback is None:
            return
        if result.blames is not None:
            context.avoid |= {result.blames}
        elif result.fallback in DECODE_PODS_OWN and result.end is not AttemptStatus.OK:
            context.avoid |= {placement.engine.pod}
        if result.fallback in WITHOUT_KV or sum(map(_is_failed_pair, context.model_attempts)) >= MAX_FALLBACKS:
            context.request = replace(context.request, is_single_engine=True)

    def _report_health(self, placement: Placement, result: AttemptResult, tenant: str | None) -> bool:
        """Report how its pods did. Returns whether the one that was to answer was failing others before."""
        side = placement.prefill
        if side is not None and side.done_s is not None:
            self._health(side.engine.pod, AttemptStatus.OK)
        if result.blames is not None:
            self._report_end(result.blames, result.end, tenant)
            return False
        return result.fallback in DECODE_PODS_OWN and self._report_end(placement.engine.pod, result.end, tenant)

    def _report_end(self, pod: str, end: AttemptStatus, tenant: str | None) -> bool:
        """Report the end of an attempt, unless it says something of its tenant only. Returns whether the pod was
        failing others before.
        """
        if tenant is not None:
            if end is AttemptStatus.OK:
                self._evidence.answered(pod, tenant, self._clock())
            elif end.is_pod_failure and not self._evidence.counts(pod, tenant, end, self._clock()):
                return False
        return bool(self._health(pod, end))

    def may_retry(self, context: RequestContext, result: AttemptResult) -> bool:
        """Return whether another pod may answer instead, or resume the stream, after an attempt that failed.

        Takes the attempt out of the retry budget.
        """
        is_in_time = self._clock() < self._deadline(context)
        if result.started or context.cuts:
            # Where the prefill half of a pair has failed a remaining answer, no pod was asked for that: it stands.
            is_left = result.continuation is not None or not result.started
            may = is_left and context.cuts <= self._retries.max_resumes and is_in_time
            context.attempt_kind = RetryKind.RESUME
            return may and self.budget.take(RetryKind.RESUME)
        asked = [attempt for attempt in context.model_attempts if _counts(attempt)]
        failed = sum(not attempt.was_unhealthy for attempt in asked)
        if not (self._retries.may_retry(failed, len(asked)) and is_in_time):
            return False
        # An engine that was not reached was asked for nothing: the next attempt is still a first one.
        context.attempt_kind = kind = RetryKind.FAILOVER if result.end.is_engine_gone else RetryKind.RETRY
        return result.end is AttemptStatus.UNREACHABLE or self.budget.take(kind, context.caller.tenant.name)

    def _deadline(self, context: RequestContext) -> float:
        """Return the loop time by which the first byte has to come."""
        if context.cut_s is not None:
            return context.cut_s + self._limits.resume_s
        return context.started_s + self._limits.deadline_s


def _cause_of(cancel: asyncio.CancelledError) -> RequestRejected | None:
    """Return the rejection that a request was cancelled with; None where its client has gone."""
    return next((why for why in cancel.args if isinstance(why, RequestRejected)), None)


def _settle_meter(meter: RequestMeter, context: RequestContext, result: AttemptResult) -> None:
    if result.was_paused:
        meter.ignore_events()
    meter.settle(context.usage, context.request.model)


def _relax_or_downgrade(context: RequestContext) -> bool:
    """Replace objective or model by what its tenant prefers to a rejection. Returns False where there is none left."""
    tenant, request, objective = context.caller.tenant, context.request, context.objective
    if tenant.on_overload is OverloadAction.RELAX and tenant.relaxed is not None and objective.tier is tenant.tier:
        context.objective = relaxed(objective, tenant.relaxed)
        context.request = replace(request, priority=tenant.relaxed.priority)
        return True
    if tenant.on_overload is not OverloadAction.DOWNGRADE:
        return False
    make_downgraded = _smaller(context) if context.downgrade is None else context.downgrade()
    if make_downgraded is None:
        return False
    context.end_lookup()
    context.request = replace(make_downgraded, downgraded_from=request.model)
    return True


def _smaller(context: RequestContext) -> Request | None:
    """Return the request to the model that its tenant downgrades to, once; None where there is none."""
    request = context.request
    model = context.caller.tenant.downgrades.get(request.model)
    if model is None or context.make_downgraded is None or request.downgraded_from is not None:
        return None
    return context.make_downgraded(model)


def _spread(request_id: str) -> float:
    """Return a number in [0, 1) that differs between requests and is always the same for one."""
    return crc32(request_id.encode()) / (1 << 32)


def _is_failed_pair(attempt: AttemptReceipt) -> bool:
    return attempt.prefill_engine is not None and attempt.fallback_reason is not None


def _counts(attempt: AttemptReceipt) -> bool:
    """Return whether it is one of the few attempts of a request: not where a pair failed by its other half, nor where
    no pod was reached.
    """
    if not AttemptStatus(attempt.result).is_counted:
        return False
    return attempt.prefill_engine is None or attempt.fallback_reason in DECODE_PODS_OWN
