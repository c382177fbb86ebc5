"""Rooms of others, to compare with: what gateways do that predict nothing. Played in virtual time only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from heapq import heappop, heappush

from gateway.pipeline.admission_queue import AdmissionQueue
from gateway.pipeline.request_context import RequestContext
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.rejection import Reason, RequestRejected
from routing.request import Request
from tenancy.objective import LatencyObjective

SLOTS = 64
"""Requests that an engine is given at once: what SMG takes where a worker does not say."""

LOOK_S = 0.005
"""How often a queue looks for room: a step takes longer."""

BACKLOG_S = 0.25

RUNNING: Mapping[str, int] = {"silver": 60, "bronze": 50}
"""Set by hand, for one fleet and one kind of traffic."""

Clock = Callable[[], float]


class StrictPriority(AdmissionQueue):
    """At most this many requests on the fleet. The one with the highest priority is next; among equals the first.

    Only requests that have waited as long as their tier allows are rejected.
    """

    def __init__(self, router: Router, clock: Clock, draw: Callable[[], float]) -> None:
        super().__init__(router, clock=clock, draw=draw)
        self._router, self._now, self._luck = router, clock, draw
        self._waiting: list[tuple[int, int, Request, frozenset[str], asyncio.Future[Placement]]] = []
        self._came = 0
        self._look_again: asyncio.TimerHandle | None = None

    async def place(
        self,
        context: RequestContext,
        objective: LatencyObjective,
        avoid: frozenset[str],
        since_s: float = 0.0,
        *,
        late_by_s: float | None = None,
    ) -> Placement:
        granted: asyncio.Future[Placement] = asyncio.get_running_loop().create_future()
        self._came += 1
        heappush(self._waiting, (-objective.tier.priority, self._came, context.request, avoid, granted))
        if self._look_again is None:
            self._grant_all()
        try:
            async with asyncio.timeout(objective.max_queue_s):
                return await granted
        except TimeoutError:
            raise RequestRejected(Reason.QUEUE_TIMEOUT, "No engine had room in time.") from None

    def _grant_all(self) -> None:
        """Grant while there is room, and check again soon while requests wait."""
        while self._waiting and (self._waiting[0][-1].done() or self._has_room(self._waiting[0][2])):
            _, _, request, avoid, granted = heappop(self._waiting)
            if granted.done():
                continue
            try:
                now_s, draw = self._now(), self._luck()
                granted.set_result(self._router.place(request, avoid=avoid, now_s=now_s, draw=draw))
            except RequestRejected as refusal:
                granted.set_exception(refusal)
        loop = asyncio.get_running_loop()
        self._look_again = loop.call_later(LOOK_S, self._grant_all) if self._waiting else None

    def _has_room(self, request: Request) -> bool:
        slots = self._router.fleet.eligible(request.model).slots
        return not slots or sum(self._router.ledger.running[slot] for slot in slots) < SLOTS * len(slots)


class StaticCaps(AdmissionQueue):
    """A tier that is capped goes only where little is queued and few run; where that is nowhere, it is refused."""

    def __init__(self, router: Router, clock: Clock, draw: Callable[[], float]) -> None:
        super().__init__(router, clock=clock, draw=draw)
        self._router, self._now, self._luck = router, clock, draw

    async def place(
        self,
        context: RequestContext,
        objective: LatencyObjective,
        avoid: frozenset[str],
        since_s: float = 0.0,
        *,
        late_by_s: float | None = None,
    ) -> Placement:
        max_running = RUNNING.get(objective.tier.name)
        if max_running is not None:
            eligible, ledger = self._router.fleet.eligible(context.request.model), self._router.ledger
            ahead_s = ledger.queued_s(eligible.select, self._now())
            full = {
                engine.pod
                for engine, queued_s in zip(eligible.engines, ahead_s, strict=True)
                if queued_s > BACKLOG_S or ledger.running[engine.slot] >= max_running
            }
            if len(full) == len(eligible.engines) > 0:
                raise RequestRejected(Reason.OVERLOADED, "All engines are as full as this tier may make them.")
            avoid |= full
        return self._router.place(context.request, avoid=avoid, now_s=self._now(), draw=self._luck())
