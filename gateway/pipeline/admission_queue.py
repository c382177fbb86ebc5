"""The queue where requests wait for admission: the only wait between the pipeline and the router.

Places immediately when admission allows it, in the same tick and without a task. Otherwise the request waits on a
future; waiters are re-evaluated on every first token and completion and every 20 ms, and granted in the order of the
queue. Decides nothing: that is `tenancy/admission.py`.

The re-evaluation runs as a guarded callback. Waiters that were cancelled are skipped before anything is placed for
them; what an exception leaves half done is found by `reconcile` and given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from gateway.pipeline.request_context import RequestContext
from gateway.pipeline.start_queue import StartQueue
from gateway.runtime.guard import PeriodicTimer, call_guarded, report_exception
from routing.candidates import NoEngineAdmissible
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.rejection import Reason, RequestRejected
from routing.request import Usage
from tenancy.admission import Admission
from tenancy.objective import LatencyObjective
from tenancy.queue import ModelQueue, WaitingRequest

WAKE_S = 0.02
"""Period of the re-evaluation while requests wait: what engines may take grows with every step that they decode."""

NO_POD_POLL_S = 0.25
"""How often a request that waits for a pod looks for one: pods take seconds to start."""

MIN_BOUND_S = 0.001

LOOP = "queue"
"""The name under which exceptions of the queue's callbacks are reported."""


class QueuedRequest:
    """A request that waits."""

    __slots__ = ("avoid", "context", "future", "waiter")

    def __init__(
        self, waiter: WaitingRequest, avoid: frozenset[str], future: asyncio.Future[Placement], context: RequestContext
    ) -> None:
        self.waiter = waiter
        self.avoid = avoid
        self.future = future
        self.context = context


class AdmissionQueue:
    """One per gateway process. Without an `Admission` no request waits for its turn."""

    def __init__(
        self,
        router: Router,
        *,
        clock: Callable[[], float],
        draw: Callable[[], float],
        admission: Admission | None = None,
        no_pod_s: float = 0.0,
        first_pod_s: float = 0.0,
    ) -> None:
        """`no_pod_s`: how long a request waits where no pod of its model is ready, at least `first_pod_s` while no pod
        has reported its models yet, as just after the start on a busy machine.
        """
        self._no_pod_s = no_pod_s
        self._first_pod_s = first_pod_s
        self._router = router
        self._clock = clock
        self._draw = draw
        self.admission: Admission | None = None
        self.waiting_for_pod: dict[str, int] = {}
        """Requests that wait for a pod of their model, by model; also of names that no pod is known to serve."""
        self.starts: StartQueue | None = None
        """Where requests wait for a pod that an autoscaler starts; None where supply decisions are off."""
        self._queued: dict[int, QueuedRequest] = {}
        self._granted: dict[Placement, tuple[WaitingRequest, RequestContext]] = {}
        """Placements that are not settled yet."""
        self._waking: asyncio.Handle | None = None
        self._ticker = PeriodicTimer(LOOP, WAKE_S, self._grant_all, lambda: self._queued)
        if admission is not None:
            self.set_admission(admission)

    def set_admission(self, admission: Admission) -> None:
        """Have requests with an objective wait for their turn from now on."""
        self.admission = admission
        admission.stalls.on_capacity_freed = self.wake_waiters

    def has_waiters(self) -> bool:
        """Whether requests wait for their turn."""
        return bool(self._queued)

    def max_wait_share(self) -> float:
        """Return the largest share of its bound that a waiting request has waited; 0 where none waits.

        The bound is its TTFT objective, or `max_queue_s` where that is less. Tiers that use only what others leave idle
        do not count.
        """
        now_s, waiters = self._clock(), (queued.waiter for queued in self._queued.values())
        return max(
            (
                (now_s - waiter.arrived_s)
                / max(min(waiter.objective.ttft_s, waiter.objective.max_queue_s), MIN_BOUND_S)
                for waiter in waiters
                if not waiter.objective.tier.is_best_effort
            ),
            default=0.0,
        )

    async def place(
        self,
        context: RequestContext,
        objective: LatencyObjective,
        avoid: frozenset[str],
        since_s: float,
        *,
        late_by_s: float | None = None,
    ) -> Placement:
        """Place a request on an engine, now or when one may take it. Raises `RequestRejected`.

        `avoid`: URLs of pods that have failed it; `since_s`: loop time from which its waiting counts. `late_by_s`: it
        was placed before and has lost its pod, so that until then it is served late rather than rejected. Where the
        caller is cancelled it has left the queue in the same tick.
        """
        was_placed = late_by_s is not None
        while True:
            try:
                request, admission, now_s = context.request, self.admission, self._clock()
                # Nothing is kept of names that clients invent.
                if (
                    admission is None
                    or not objective.is_bound
                    or not self._router.fleet.knows(request.model, request.regions)
                ):
                    return self._router.place(request, avoid=avoid, now_s=now_s, draw=self._draw())
                waiter = admission.arrive(
                    request,
                    context.caller,
                    objective,
                    came_s=since_s,
                    now_s=now_s,
                    draw=self._draw(),
                    late_by_s=late_by_s,
                    was_placed=was_placed,
                )
                try:
                    placement = self._place_now(admission, waiter, avoid, now_s, context)
                    return placement if placement is not None else await self._wait(waiter, avoid, context)
                except BaseException:
                    admission.leave(waiter)
                    raise
            except RequestRejected as rejection:
                if rejection.reason is not Reason.NO_POD_READY or avoid:
                    raise
                no_pod = rejection
            started_by_s = await self._wait_for_pod(context, objective, since_s, no_pod)
            if late_by_s is None:
                late_by_s = started_by_s

    async def _wait_for_pod(
        self, context: RequestContext, objective: LatencyObjective, since_s: float, no_pod: RequestRejected
    ) -> float | None:
        """Wait for a pod of the request's model. Returns the loop time until which a request that has waited for the
        start of a pod is served late rather than rejected; None without supply decisions. Raises `RequestRejected`.
        """
        model, waiting, starts = context.request.model, self.waiting_for_pod, self.starts
        if starts is None or not starts.covers(model):
            first_s = 0.0 if self._router.fleet.has_reported_models else self._first_pod_s
            if self._clock() >= since_s + max(self._no_pod_s, first_s):
                raise no_pod
            starts = None
        waiting[model] = waiting.get(model, 0) + 1
        try:
            if starts is not None:
                return await starts.wait(context, objective, since_s)
            await asyncio.sleep(NO_POD_POLL_S)
        finally:
            waiting[model] -= 1
            if not waiting[model]:
                del waiting[model]
        return None

    def settle(self, placement: Placement, usage: Usage | None) -> None:
        """Settle a placement that is about to be released; `usage` where it was answered in full."""
        waiter, _ = self._granted.pop(placement, (None, None))
        if waiter is not None and self.admission is not None:
            try:
                self.admission.settle(waiter, placement, usage, self._clock())
            finally:
                self.admission.leave(waiter)

    def wake_waiters(self) -> None:
        """Re-evaluate the queue in the next tick, once: an engine may have become able to take a request."""
        if self._waking is None and self._queued:
            self._waking = asyncio.get_running_loop().call_soon(call_guarded, LOOP, self._grant_all)

    def reconcile(self) -> None:
        """Give back what belongs to no live request: an exception in a callback may leave something over."""
        admission, now_s = self.admission, self._clock()
        if admission is None:
            return
        for queued in [
            queued for queued in self._queued.values() if queued.future.done() and not queued.waiter.has_left
        ]:
            call_guarded(LOOP, queued.waiter.queue.take, queued.waiter, now_s)
        for number in [number for number, queued in self._queued.items() if queued.context.has_ended]:
            call_guarded(LOOP, admission.leave, self._queued.pop(number).waiter)  # Whether or not it has left already.
        for placement in [placement for placement, (_, context) in self._granted.items() if context.has_ended]:
            call_guarded(LOOP, self.settle, placement, None)
            call_guarded(LOOP, placement.release, now_s)

    def _place_now(
        self, admission: Admission, waiter: WaitingRequest, avoid: frozenset[str], now_s: float, context: RequestContext
    ) -> Placement | None:
        """Return None where it has to wait. Raises `RequestRejected` where it would wait for nothing."""
        queue = waiter.queue
        if not queue.must_wait(waiter.objective.tier):
            try:
                return self._grant(admission, waiter, avoid, context)
            except NoEngineAdmissible:
                pass
        if waiter.start_by_s < now_s:
            raise admission.overload_rejection(waiter, now_s, queue.backlog_s, self._draw())
        return None

    async def _wait(self, waiter: WaitingRequest, avoid: frozenset[str], context: RequestContext) -> Placement:
        queue, future = waiter.queue, asyncio.get_running_loop().create_future()
        self._make_room(waiter)
        queued = self._queued[waiter.number] = QueuedRequest(waiter, avoid, future, context)
        queue.put(waiter, self._clock())
        self.wake_waiters()
        self._ticker.start()
        try:
            return await queued.future
        except asyncio.CancelledError:
            if queued.future.done() and not queued.future.cancelled() and queued.future.exception() is None:
                # It leaves in the very tick of its grant.
                self._give_back(queued.future.result())
            raise
        finally:
            self._queued.pop(waiter.number, None)
            if not waiter.has_left:
                queue.take(waiter, self._clock())
                self.wake_waiters()

    def _make_room(self, waiter: WaitingRequest) -> None:
        """Reject what has to leave a full queue for a request. Raises `RequestRejected` where nothing has to."""
        admission = self.admission
        while admission is not None and admission.is_full_for(waiter):
            displaced = waiter.queue.displaced_by(waiter)
            rejection = admission.full_rejection(displaced or waiter, self._clock(), self._draw())
            if displaced is None:
                raise rejection
            self._reject(waiter.queue, displaced, rejection)

    def _give_back(self, placement: Placement) -> None:
        """Give back a grant whose request has left."""
        waiter, _ = self._granted.pop(placement, (None, None))
        try:
            if waiter is not None and self.admission is not None:
                self.admission.settle(waiter, placement, None, self._clock())
        finally:
            placement.release(self._clock())

    def _grant(
        self, admission: Admission, waiter: WaitingRequest, avoid: frozenset[str], context: RequestContext
    ) -> Placement:
        placement = admission.place(waiter, avoid, now_s=self._clock(), draw=self._draw())
        self._granted[placement] = waiter, context
        return placement

    def _grant_all(self) -> None:
        """Grant whatever may be granted, and reject what can no longer be served in time."""
        self._waking = None
        admission = self.admission
        if admission is None:
            return
        peers = admission.peers
        if peers is not None:
            peers.refresh(self._clock())
        # What fails in one queue must not stop the others.
        is_single_engine = [
            call_guarded(LOOP, self._grant_from, admission, queue) for queue in tuple(admission.queues.values())
        ]
        if not all(is_single_engine):
            self.reconcile()
        if peers is not None:
            peers.publish_waiting(self._clock())

    def _grant_from(self, admission: Admission, queue: ModelQueue) -> None:
        now_s = self._clock()
        for waiter in queue.overdue(now_s):
            if not self._take_cancelled(queue, waiter) and not waiter.tier_queue.defer(waiter, now_s):
                rejection = admission.overload_rejection(waiter, now_s, queue.backlog_s, self._draw())
                self._reject(queue, waiter, rejection)
        while self._may_grant(admission, queue, now_s) and self._grant_next(admission, queue):
            pass

    def _may_grant(self, admission: Admission, queue: ModelQueue, now_s: float) -> bool:
        peers = admission.peers
        return peers is None or not queue.has_peers_waiting or peers.may_grant(queue, now_s, self._draw())

    def _grant_next(self, admission: Admission, queue: ModelQueue) -> bool:
        """Return whether another request may be next. None of lower rank overtakes one that no engine can take now."""
        blocked = -inf
        for line in queue.by_rank():
            if line.tier.priority < blocked:
                continue
            waiter = next(line.heads())
            if self._take_cancelled(queue, waiter):
                return True
            queued = self._queued[waiter.number]
            try:
                placement = self._grant(admission, waiter, queued.avoid, queued.context)
            except NoEngineAdmissible:
                blocked = max(blocked, line.tier.priority)
            except RequestRejected as rejection:
                self._reject(queue, waiter, rejection)
                return True
            except Exception as error:  # noqa: BLE001 - of this request alone: those behind it are served
                report_exception(LOOP, error)
                self._reject(queue, waiter, error)
                return True
            else:
                queue.take(waiter, self._clock())
                if queued.future.done():  # Cancelled while it was placed.
                    self._give_back(placement)
                else:
                    queued.future.set_result(placement)
                return True
        return False

    def _take_cancelled(self, queue: ModelQueue, waiter: WaitingRequest) -> bool:
        """Return whether the waiter's task was cancelled and has not run since: then it waits no longer."""
        queued = self._queued.get(waiter.number)
        if queued is not None and not queued.future.done():
            return False
        queue.take(waiter, self._clock())
        return True

    def _reject(self, queue: ModelQueue, waiter: WaitingRequest, error: Exception) -> None:
        queue.take(waiter, self._clock())
        future = self._queued[waiter.number].future
        if not future.done():  # Otherwise cancelled meanwhile.
            future.set_exception(error)
