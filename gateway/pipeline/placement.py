"""Finds a place for a request on its way: where it waits for one, and asks for less where its tenant would rather.

What has lost its pod, before its first byte or in the middle of an answer, was admitted once: it waits at the rank of
its tier, before what is new there, and is served late rather than refused. So a lost pod's higher tiers go first.

Knows who may wait and what may be asked for instead; not how a request is carried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from zlib import crc32

from msgspec.structs import replace

from gateway.attempts.attempt import AttemptStatus
from gateway.cascades.cascade_run import CascadeRun
from gateway.pipeline.admission_queue import NO_POD_POLL_S, AdmissionQueue
from gateway.pipeline.attempt_runner import GONE, rejection_for
from gateway.pipeline.request_context import RequestContext
from routing.decision.placement import Placement
from routing.rejection import Reason, RequestRejected
from tenancy.objective import NO_OBJECTIVE, OverloadAction, relaxed

OVERLOAD = frozenset({Reason.OVERLOADED, Reason.QUEUE_FULL})

YIELDS, SPREAD = 0.4, 0.4
"""The part of its time in which the rest of an answer leaves engines to those who go before it, and up to how much more
of it: those that lost one pod together do not all stop waiting at once.
"""

LOST = GONE | {AttemptStatus.UNREACHABLE}
"""Ends by which a request that an engine was to serve has lost that engine."""


class PlacementStage:
    """Asks the room on behalf of journeys. Holds no request's state."""

    def __init__(self, room: AdmissionQueue, clock: Callable[[], float], *, resume_s: float) -> None:
        """`resume_s`: how long after a cut somebody is looked for to go on."""
        self._room = room
        self._clock = clock
        self._resume_s = resume_s

    async def place(self, journey: RequestContext) -> Placement:
        """Put a journey's request on an engine, now or when one may take it. Raises `RequestRejected`."""
        if journey.cut_s is not None:
            return await self._place_continuation(journey, journey.cut_s + self._resume_s)
        asked_s = self._clock()
        try:
            return await self._room.place(
                journey.request,
                journey.caller,
                journey.objective,
                journey.avoid,
                journey.started_s,
                late_by_s=self._late_by_s(journey, asked_s),
            )
        except RequestRejected as refusal:
            if journey.result is not None and not (refusal.reason in OVERLOAD and journey.result.end in LOST):
                # Nobody else may serve it: what the last pod said tells the client more than "no pod is ready".
                raise rejection_for(journey.result) from None
            if refusal.reason not in OVERLOAD or not _relax_or_downgrade(journey):
                raise
        finally:
            journey.queued_s += self._clock() - asked_s
        return await self.place(journey)

    def _late_by_s(self, journey: RequestContext, now_s: float) -> float | None:
        """Until when a request that has lost its pod waits for another one, though its promise may be broken."""
        is_lost = journey.result is not None and journey.result.end in LOST
        return now_s + journey.objective.max_wait_s if is_lost and journey.objective.is_bound else None

    async def _place_continuation(self, journey: RequestContext, by_s: float) -> Placement:
        """At the rank of its tier for some of its time, then at once: better late for others than cut for its client.

        Where nobody else is left, a pod that has failed it may go on all the same: it may have come back.
        """
        avoid, cut_s = journey.avoid, by_s - self._resume_s
        promise, yields_by_s = (
            journey.objective,
            cut_s + (YIELDS + SPREAD * _spread(journey.request.id)) * self._resume_s,
        )
        while True:
            now_s = self._clock()
            try:
                return await self._room.place(
                    journey.request, journey.caller, promise, avoid, cut_s, late_by_s=yields_by_s
                )
            except RequestRejected as refusal:
                if refusal.reason in OVERLOAD and promise.is_bound:
                    promise = NO_OBJECTIVE
                    continue
                if journey.result is None or refusal.reason is not Reason.NO_POD_READY or now_s >= by_s:
                    raise rejection_for(journey.result) if journey.result else refusal from None
            avoid = frozenset()
            await asyncio.sleep(NO_POD_POLL_S)


def _spread(request_id: str) -> float:
    """A number in [0, 1) that is another for most requests, and always the same for one."""
    return crc32(request_id.encode()) / (1 << 32)


def _relax_or_downgrade(journey: RequestContext) -> bool:
    """Whether there is less to ask for, where the tenant would rather have that than nothing. Each kind once."""
    tenant, request, promise = journey.caller.tenant, journey.request, journey.objective
    if tenant.on_overload is OverloadAction.RELAX and tenant.relaxed is not None and promise.tier is tenant.tier:
        journey.objective = relaxed(promise, tenant.relaxed)
        journey.request = replace(request, priority=tenant.relaxed.priority)
        return True
    if journey.cascade_run is not None:
        return tenant.on_overload is OverloadAction.DOWNGRADE and _use_smaller_model(journey, journey.cascade_run)
    model = tenant.downgrades.get(request.model)
    if tenant.on_overload is not OverloadAction.DOWNGRADE or model is None or journey.make_downgraded is None:
        return False
    if request.downgraded_from is not None:
        return False
    if request.lookup is not None:
        request.lookup.listener.over()
    journey.request = replace(journey.make_downgraded(model), downgraded_from=request.model)
    return True


def _use_smaller_model(journey: RequestContext, climb: CascadeRun) -> bool:
    """Ask a cheaper rung of the same ladder, whose answer is taken as it is."""
    before = climb.model
    if not climb.downgrade():
        return False
    if journey.request.lookup is not None:
        journey.request.lookup.listener.over()
    journey.request = replace(climb.next_request(), downgraded_from=before)
    return True
