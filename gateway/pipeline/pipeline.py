"""The request pipeline: from a parsed request to its record. `RequestPipeline.handle_request` is the place to start.

Stages: reserve the expected usage on the caller's accounts; place the request (choose an engine and charge the ledger,
now or when admission allows it); let its transport run an attempt; settle; record. A pod that fails is replaced while
the request's limits and the retry budget allow it, also in the middle of a stream. Every charge is returned to the
ledger, even if the request is cancelled in the tick in which it is admitted. Independent of protocols: each frontend
brings an `AttemptTransport`.
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
"""Receives pod URL and result of every attempt; opens breakers. Returns whether the pod was failing other requests
before, None where that is unknown.
"""

RunPairAttempt = Callable[[Placement, PrefillPlacement, AttemptTransport, float], Awaitable[AttemptResult]]
"""Runs an attempt like `AttemptTransport.run_attempt`, with the prompt prefilled by another engine."""

OVERLOAD = frozenset({Reason.OVERLOADED, Reason.QUEUE_FULL})
"""Rejections by admission, for which a request may be downgraded or its objective relaxed."""

YIELDS, SPREAD = 0.4, 0.4
"""Share of the resume time in which a cut stream waits in the queue at the rank of its tier, and the spread added to it
by request id: streams that lost one pod together do not all stop waiting at once.
"""

MAX_FALLBACKS = 2
"""Maximum failed pairs of a request; then the engine that answers it also prefills it."""

DECODE_PODS_OWN = frozenset({None, PairingFallback.DECODE_FAILED})
"""Fallbacks with which the result of an attempt is that of the decode pod, as if there had been no pair."""

WITHOUT_KV = frozenset({PairingFallback.TRANSFER_STALLED, PairingFallback.TRANSFER_FAILED})
"""Fallbacks after which the request is not paired again: they take long."""


class RequestHook:
    """Lets a feature, such as a cascade, take part in one request. Requests without such a feature have no hook."""

    async def serve(self, pipeline: RequestPipeline, context: RequestContext, transport: AttemptTransport) -> None:
        """Serve the request by the stages of the pipeline. Raises `RequestRejected`."""
        await pipeline.try_pods(context, transport)

    def downgrade(self) -> Request | None:
        """Return the request for a cheaper model to send under overload; None where there is none."""
        return None

    def finish(self, context: RequestContext) -> None:
        """Add to the record of a request that has ended, served or not."""


class RequestPipeline:
    """Serves requests: one per gateway process. The state of a request is its `RequestContext`."""

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
        """`reserve` is called for callers with accounts. The default `queue` has no admission, so no request waits.
        Without `run_pair` the next hop of the decode engine (Envoy's sidecar) runs the prefill.
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
        """Report results of attempts to another receiver from now on; called before the first request."""
        self._health = health

    def observe_first(self, observer: OutcomeListener) -> None:
        """Call an observer before all others: they read what it adds to the record."""
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
        """Serve a request or reject it. Raises only `asyncio.CancelledError`, when the client has disconnected.

        `objective`: default: that of its tier. `trace`: the trace it belongs to. `lookup`: looks up the request's
        cached tokens in the precise prefix index. `make_downgraded`: returns the request for another model under
        overload. `hook`: a feature that takes part; `request` is then the first request of the feature.
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

        Nothing is placed, learned or retried. Raises only `asyncio.CancelledError`, when the client has disconnected.
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
            except Exception as error:  # noqa: BLE001 - the other observers are called all the same
                report_exception("observer", error)

    # -- stages ----------------------------------------------------------------------------------------------------

    async def try_pods(self, context: RequestContext, transport: AttemptTransport) -> None:
        """Place and attempt a request until a pod has answered it. Raises `RequestRejected` if none does."""
        result = await self.attempt(context, await self.place(context), transport)
        while result.end is not AttemptStatus.OK:
            if not self.may_retry(context, result):
                raise rejection_for(result)
            result = await self.attempt(context, await self.place(context), transport)

    async def place(self, context: RequestContext) -> Placement:
        """Place a request on an engine, now or when admission allows it. Under overload, apply the tenant's
        `on_overload`.

        A request that has lost its pod was admitted once: it waits at the rank of its tier, before new requests, and is
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
                    # No other pod may serve it: the failure of the last one is more useful than "no pod is ready".
                    raise rejection_for(result) from None
                if rejection.reason not in OVERLOAD or not _relax_or_downgrade(context):
                    raise
            finally:
                context.record.queue_wait_s += self._clock() - started_s

    async def _place_continuation(self, context: RequestContext, cut_s: float) -> Placement:
        """Place the remaining answer of a cut stream: for part of the resume time at the rank of its tier, then at
        once.

        Other requests become late rather than this stream cut. If no other pod is left, a pod that failed it is tried
        again: it may have recovered.
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
        """Run one attempt at the engine of a placement and settle it. Raises only `asyncio.CancelledError`."""
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
        """Return the charges and learn from the result; `result` is None if the client has disconnected."""
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
        """Report the health of its pods. Returns whether the decode pod was failing other requests before."""
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
            # If the prefill attempt of a pair failed, no pod was sent the continuation: it can be sent again.
            is_left = result.continuation is not None or not result.started
            may = is_left and context.cuts <= self._retries.max_resumes and is_in_time
            context.attempt_kind = RetryKind.RESUME
            return may and self.budget.take(RetryKind.RESUME)
        asked = [attempt for attempt in context.model_attempts if _counts(attempt)]
        failed = sum(not attempt.was_unhealthy for attempt in asked)
        if not (self._retries.may_retry(failed, len(asked)) and is_in_time):
            return False
        # An engine that was not reached has received nothing: the next attempt is still a first one.
        context.attempt_kind = kind = RetryKind.FAILOVER if result.end.is_engine_gone else RetryKind.RETRY
        return result.end is AttemptStatus.UNREACHABLE or self.budget.take(kind, context.caller.tenant.name)

    def _deadline(self, context: RequestContext) -> float:
        """Return the loop time by which the first byte has to come."""
        if context.cut_s is not None:
            return context.cut_s + self._limits.resume_s
        return context.started_s + self._limits.deadline_s


def _cause_of(cancel: asyncio.CancelledError) -> RequestRejected | None:
    """Return the rejection that a request was cancelled with; None if its client has disconnected."""
    return next((why for why in cancel.args if isinstance(why, RequestRejected)), None)


def _settle_meter(meter: RequestMeter, context: RequestContext, result: AttemptResult) -> None:
    if result.was_paused:
        meter.ignore_events()
    meter.settle(context.usage, context.request.model)


def _relax_or_downgrade(context: RequestContext) -> bool:
    """Relax the objective or downgrade the model, by the tenant's `on_overload`. Returns False if neither is left."""
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
    """Return the request for the model that its tenant downgrades to, once; None where there is none."""
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
    """Return whether an attempt counts towards `max_attempts`: not if the prefill half of a pair failed, nor if no pod
    was reached.
    """
    if not AttemptStatus(attempt.result).is_counted:
        return False
    return attempt.prefill_engine is None or attempt.fallback_reason in DECODE_PODS_OWN
