"""Where a request waits until an engine may take it: the one place between the spine and the router that may wait.

Places at once where nothing bars it, in the same tick and without a task. Who waits has a future; the room is stirred
by every first token and every end, and by a timer while somebody waits, and grants in the order of the queue. Decides
nothing: that is `tenancy/admission.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from routing.candidates import NotNow
from routing.learning import Usage
from routing.placement import Placement
from routing.refusal import Reason, Refused
from routing.request import Request
from routing.router import Router
from tenancy.admission import Admission
from tenancy.promise import Promise
from tenancy.queue import Queue, Waiter
from tenancy.tenants import Caller

STIR_S = 0.02
"""What engines may take grows with every step that they decode: about so often it is worth another look."""

NO_POD_LOOK_S = 0.25
"""How often who waits for a pod looks for one: pods take seconds to come."""


class Seat:
    """One who waits."""

    __slots__ = ("avoid", "future", "waiter")

    def __init__(self, waiter: Waiter, avoid: frozenset[str], future: asyncio.Future[Placement]) -> None:
        self.waiter = waiter
        self.avoid = avoid
        self.future = future


class Room:
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
        self._seats: dict[int, Seat] = {}
        self._granted: dict[Placement, Waiter] = {}
        """Until they are settled."""
        self._stirring: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        if admission is not None:
            self.admit_by(admission)

    def admit_by(self, admission: Admission) -> None:
        """Have those to whom something is promised wait for their turn from now on."""
        self.admission = admission
        admission.relief = self.stir

    @property
    def is_crowded(self) -> bool:
        """Whether anybody waits."""
        return bool(self._seats)

    async def place(
        self, request: Request, caller: Caller, promise: Promise, avoid: frozenset[str], came_s: float
    ) -> Placement:
        """Put a request on an engine, now or when one may take it. Raises `Refused`.

        `avoid` names pods that have failed it, `came_s` is when it came to us. Where the caller is cancelled it has
        left the room in the same tick.
        """
        while True:
            try:
                return await self._admit(request, caller, promise, avoid, came_s)
            except Refused as refusal:
                if refusal.reason is not Reason.NO_POD_READY or avoid:
                    raise
                first_s = 0.0 if self._router.fleet.has_told else self._first_pod_s
                if self._clock() >= came_s + max(self._no_pod_s, first_s):
                    raise
            await asyncio.sleep(NO_POD_LOOK_S)

    async def _admit(
        self, request: Request, caller: Caller, promise: Promise, avoid: frozenset[str], came_s: float
    ) -> Placement:
        admission, now_s = self.admission, self._clock()
        knows = self._router.fleet.knows
        # Of names that clients invent nothing is kept.
        if admission is None or not promise.is_bound or not knows(request.model, request.regions):
            return self._router.place(request, avoid=avoid, now_s=now_s, draw=self._draw())
        waiter = admission.arrive(request, caller, promise, came_s=came_s, now_s=now_s, draw=self._draw())
        try:
            return await self._place(admission, waiter, avoid, now_s)
        except BaseException:
            admission.leave(waiter)
            raise

    def settle(self, placement: Placement, usage: Usage | None) -> None:
        """A request that was placed here is about to be released; `usage` where it was answered in full."""
        waiter = self._granted.pop(placement, None)
        if waiter is not None and self.admission is not None:
            now_s = self._clock()
            self.admission.settle(waiter, placement, usage, now_s)
            self.admission.leave(waiter)

    def stir(self) -> None:
        """Somebody might go: look when all that happens in this moment has happened."""
        if self._stirring is None and self._seats:
            self._stirring = asyncio.get_running_loop().call_soon(self._look)

    async def _place(self, admission: Admission, waiter: Waiter, avoid: frozenset[str], now_s: float) -> Placement:
        queue = waiter.queue
        if not queue.comes_first(waiter.promise.tier):
            try:
                return self._grant(admission, waiter, avoid)
            except NotNow:
                pass
        if waiter.start_by_s < now_s:
            raise admission.overloaded(waiter, now_s, queue.backlog_s, self._draw())
        return await self._wait(queue, waiter, avoid)

    async def _wait(self, queue: Queue, waiter: Waiter, avoid: frozenset[str]) -> Placement:
        loop = asyncio.get_running_loop()
        seat = self._seats[waiter.number] = Seat(waiter, avoid, loop.create_future())
        queue.put(waiter, self._clock())
        self.stir()
        if self._timer is None:
            self._timer = loop.call_later(STIR_S, self._ring)
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
                self.stir()

    def _give_back(self, placement: Placement) -> None:
        """Give back a grant that nobody took up."""
        waiter = self._granted.pop(placement, None)
        if waiter is not None and self.admission is not None:
            self.admission.settle(waiter, placement, None, self._clock())
        placement.release(self._clock())

    def _grant(self, admission: Admission, waiter: Waiter, avoid: frozenset[str]) -> Placement:
        placement = admission.place(waiter, avoid, now_s=self._clock(), draw=self._draw())
        self._granted[placement] = waiter
        return placement

    def _ring(self) -> None:
        self._look()
        self._timer = asyncio.get_running_loop().call_later(STIR_S, self._ring) if self._seats else None

    def _look(self) -> None:
        """Grant whatever may be granted, and turn away who can no longer be served in time."""
        self._stirring = None
        admission = self.admission
        if admission is None:
            return
        now_s = self._clock()
        for queue in admission.queues.values():
            for waiter in queue.overdue(now_s):
                if not waiter.line.defer(waiter, now_s):
                    refusal = admission.overloaded(waiter, now_s, queue.backlog_s, self._draw())
                    self._turn_away(queue, waiter, refusal)
            while self._grant_next(admission, queue):
                pass

    def _grant_next(self, admission: Admission, queue: Queue) -> bool:
        """Whether another may be next. Nobody of lower rank passes one who is barred."""
        barred = -inf
        for line in queue.by_rank():
            if line.tier.priority < barred:
                continue
            waiter = next(line.heads())
            seat = self._seats[waiter.number]
            try:
                placement = self._grant(admission, waiter, seat.avoid)
            except NotNow:
                barred = max(barred, line.tier.priority)
            except Refused as refusal:
                self._turn_away(queue, waiter, refusal)
                return True
            else:
                queue.take(waiter, self._clock())
                seat.future.set_result(placement)
                return True
        return False

    def _turn_away(self, queue: Queue, waiter: Waiter, refusal: Refused) -> None:
        queue.take(waiter, self._clock())
        self._seats[waiter.number].future.set_exception(refusal)
