"""Where a request waits until an engine may take it: the one place between the spine and the router that may wait.

Places at once where nothing bars it, in the same tick and without a task. Who waits has a future; the room is stirred
by every first token and every end, and by a timer while somebody waits, and grants in the order of the queue. Decides
nothing: that is `tenancy/admission.py`.

A look at the queue runs as a guarded callback. Waiters that were cancelled are skipped before anything is placed for
them; what an exception leaves half done is found by `reconcile` and given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any

from gateway.runtime.guard import PeriodicTimer, call_guarded, report_exception
from routing.candidates import NoEngineAdmissible
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.rejection import Reason, RequestRejected
from routing.request import Request, Usage
from tenancy.admission import Admission
from tenancy.objective import LatencyObjective
from tenancy.queue import ModelQueue, WaitingRequest
from tenancy.tenants import Caller

WAKE_S = 0.02
"""What engines may take grows with every step that they decode: about so often it is worth another look."""

NO_POD_POLL_S = 0.25
"""How often who waits for a pod looks for one: pods take seconds to come."""

LOOP = "queue"
"""The name under which exceptions of the room's callbacks are reported."""

Owner = asyncio.Task[Any] | None
"""The task that a placement belongs to: as long as it runs, its request is alive."""


class QueuedRequest:
    """One who waits."""

    __slots__ = ("avoid", "future", "owner", "waiter")

    def __init__(
        self, waiter: WaitingRequest, avoid: frozenset[str], future: asyncio.Future[Placement], owner: Owner
    ) -> None:
        self.waiter = waiter
        self.avoid = avoid
        self.future = future
        self.owner = owner


class AdmissionQueue:
    """One per gateway process. Without an `Admission` nobody waits."""

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
        """How long a request waits where no pod of its model is ready: `no_pod_s`, and at least `first_pod_s` while no
        pod has told yet what it serves, as when we have just begun on a busy machine.
        """
        self._no_pod_s = no_pod_s
        self._first_pod_s = first_pod_s
        self._router = router
        self._clock = clock
        self._draw = draw
        self.admission: Admission | None = None
        self.waiting_for_pod: dict[str, int] = {}
        """Requests that wait for a pod of their model, by model; also of names that no pod is known to serve."""
        self._seats: dict[int, QueuedRequest] = {}
        self._granted: dict[Placement, tuple[WaitingRequest, Owner]] = {}
        """Until they are settled."""
        self._stirring: asyncio.Handle | None = None
        self._ticker = PeriodicTimer(LOOP, WAKE_S, self._grant_all, lambda: self._seats)
        if admission is not None:
            self.set_admission(admission)

    def set_admission(self, admission: Admission) -> None:
        """Have those to whom something is promised wait for their turn from now on."""
        self.admission = admission
        admission.on_capacity_freed = self.wake_waiters

    @property
    def has_waiters(self) -> bool:
        """Whether anybody waits."""
        return bool(self._seats)

    async def place(
        self,
        request: Request,
        caller: Caller,
        promise: LatencyObjective,
        avoid: frozenset[str],
        came_s: float,
        *,
        late_by_s: float | None = None,
    ) -> Placement:
        """Put a request on an engine, now or when one may take it. Raises `RequestRejected`.

        `avoid` names pods that have failed it, `came_s` is when it came to us. `late_by_s`: it was placed before and
        has lost its pod, so that until then it is served late rather than refused. Where the caller is cancelled it
        has left the room in the same tick.
        """
        while True:
            try:
                return await self._admit(request, caller, promise, avoid, came_s, late_by_s)
            except RequestRejected as refusal:
                if refusal.reason is not Reason.NO_POD_READY or avoid:
                    raise
                first_s = 0.0 if self._router.fleet.has_reported_models else self._first_pod_s
                if self._clock() >= came_s + max(self._no_pod_s, first_s):
                    raise
            waiting, model = self.waiting_for_pod, request.model
            waiting[model] = waiting.get(model, 0) + 1
            try:
                await asyncio.sleep(NO_POD_POLL_S)
            finally:
                waiting[model] -= 1
                if not waiting[model]:
                    del waiting[model]

    async def _admit(
        self,
        request: Request,
        caller: Caller,
        promise: LatencyObjective,
        avoid: frozenset[str],
        came_s: float,
        late_by_s: float | None,
    ) -> Placement:
        admission, now_s = self.admission, self._clock()
        knows = self._router.fleet.knows
        # Of names that clients invent nothing is kept.
        if admission is None or not promise.is_bound or not knows(request.model, request.regions):
            return self._router.place(request, avoid=avoid, now_s=now_s, draw=self._draw())
        waiter = admission.arrive(
            request, caller, promise, came_s=came_s, now_s=now_s, draw=self._draw(), late_by_s=late_by_s
        )
        try:
            return await self._place(admission, waiter, avoid, now_s)
        except BaseException:
            admission.leave(waiter)
            raise

    def settle(self, placement: Placement, usage: Usage | None) -> None:
        """A request that was placed here is about to be released; `usage` where it was answered in full."""
        waiter, _ = self._granted.pop(placement, (None, None))
        if waiter is not None and self.admission is not None:
            try:
                self.admission.settle(waiter, placement, usage, self._clock())
            finally:
                self.admission.leave(waiter)

    def wake_waiters(self) -> None:
        """Somebody might go: look when all that happens in this moment has happened."""
        if self._stirring is None and self._seats:
            self._stirring = asyncio.get_running_loop().call_soon(call_guarded, LOOP, self._grant_all)

    def reconcile(self) -> None:
        """Give back what belongs to no live request: after an exception in a callback something may be left over."""
        admission, now_s = self.admission, self._clock()
        if admission is None:
            return
        for seat in [seat for seat in self._seats.values() if seat.future.done() and not seat.waiter.has_left]:
            call_guarded(LOOP, seat.waiter.queue.take, seat.waiter, now_s)
        for number in [number for number, seat in self._seats.items() if _has_ended(seat.owner)]:
            call_guarded(LOOP, admission.leave, self._seats.pop(number).waiter)  # Whether or not it has left already.
        for placement in [placement for placement, (_, owner) in self._granted.items() if _has_ended(owner)]:
            call_guarded(LOOP, self.settle, placement, None)
            call_guarded(LOOP, placement.release, now_s)

    async def _place(
        self, admission: Admission, waiter: WaitingRequest, avoid: frozenset[str], now_s: float
    ) -> Placement:
        queue = waiter.queue
        if not queue.must_wait(waiter.objective.tier):
            try:
                return self._grant(admission, waiter, avoid, asyncio.current_task())
            except NoEngineAdmissible:
                pass
        if waiter.start_by_s < now_s:
            raise admission.overload_rejection(waiter, now_s, queue.backlog_s, self._draw())
        return await self._wait(queue, waiter, avoid)

    async def _wait(self, queue: ModelQueue, waiter: WaitingRequest, avoid: frozenset[str]) -> Placement:
        loop = asyncio.get_running_loop()
        seat = self._seats[waiter.number] = QueuedRequest(waiter, avoid, loop.create_future(), asyncio.current_task())
        queue.put(waiter, self._clock())
        self.wake_waiters()
        self._ticker.start()
        try:
            return await seat.future
        except asyncio.CancelledError:
            if seat.future.done() and not seat.future.cancelled() and seat.future.exception() is None:
                # It goes in the very tick of its grant.
                placement = seat.future.result()
                self._give_back(placement)
            raise
        finally:
            self._seats.pop(waiter.number, None)
            if not waiter.has_left:
                queue.take(waiter, self._clock())
                self.wake_waiters()

    def _give_back(self, placement: Placement) -> None:
        """Give back a grant that nobody took up."""
        waiter, _ = self._granted.pop(placement, (None, None))
        try:
            if waiter is not None and self.admission is not None:
                self.admission.settle(waiter, placement, None, self._clock())
        finally:
            placement.release(self._clock())

    def _grant(self, admission: Admission, waiter: WaitingRequest, avoid: frozenset[str], owner: Owner) -> Placement:
        placement = admission.place(waiter, avoid, now_s=self._clock(), draw=self._draw())
        self._granted[placement] = waiter, owner
        return placement

    def _grant_all(self) -> None:
        """Grant whatever may be granted, and turn away who can no longer be served in time."""
        self._stirring = None
        admission = self.admission
        if admission is None:
            return
        # What fails in one queue must not keep others from their turn.
        is_whole = [
            call_guarded(LOOP, self._grant_from, admission, queue) for queue in tuple(admission.queues.values())
        ]
        if not all(is_whole):
            self.reconcile()

    def _grant_from(self, admission: Admission, queue: ModelQueue) -> None:
        now_s = self._clock()
        for waiter in queue.overdue(now_s):
            if not self._take_cancelled(queue, waiter) and not waiter.tier_queue.defer(waiter, now_s):
                refusal = admission.overload_rejection(waiter, now_s, queue.backlog_s, self._draw())
                self._reject(queue, waiter, refusal)
        while self._grant_next(admission, queue):
            pass

    def _grant_next(self, admission: Admission, queue: ModelQueue) -> bool:
        """Whether another may be next. Nobody of lower rank passes one who is barred."""
        barred = -inf
        for line in queue.by_rank():
            if line.tier.priority < barred:
                continue
            waiter = next(line.heads())
            if self._take_cancelled(queue, waiter):
                return True
            seat = self._seats[waiter.number]
            try:
                placement = self._grant(admission, waiter, seat.avoid, seat.owner)
            except NoEngineAdmissible:
                barred = max(barred, line.tier.priority)
            except RequestRejected as refusal:
                self._reject(queue, waiter, refusal)
                return True
            except Exception as error:  # noqa: BLE001 - of this request alone: those behind it are served
                report_exception(LOOP, error)
                self._reject(queue, waiter, error)
                return True
            else:
                queue.take(waiter, self._clock())
                seat.future.set_result(placement)
                return True
        return False

    def _take_cancelled(self, queue: ModelQueue, waiter: WaitingRequest) -> bool:
        """Whether the waiter's task has been cancelled, and has not run since: then it waits no longer."""
        seat = self._seats.get(waiter.number)
        if seat is not None and not seat.future.done():
            return False
        queue.take(waiter, self._clock())
        return True

    def _reject(self, queue: ModelQueue, waiter: WaitingRequest, why: Exception) -> None:
        queue.take(waiter, self._clock())
        self._seats[waiter.number].future.set_exception(why)


def _has_ended(owner: Owner) -> bool:
    return owner is not None and owner.done()
