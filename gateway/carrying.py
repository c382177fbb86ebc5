"""Has a placed request carried to its engine, and settles what came of it.

Whatever happens, also a cancel in the tick of a grant, the ledger gets back what was charged. Says what may be tried
again; who is asked next is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.carrier import Carrier, Leg, LegEnd
from gateway.journey import Journey
from gateway.patience import Patience
from gateway.room import Room
from routing.placement import Placement
from routing.reading import owned
from routing.receipt import show_attempt
from routing.refusal import Reason, Refused

REASON_OF_END = {
    LegEnd.UNREACHABLE: Reason.POD_UNREACHABLE,
    LegEnd.LOST: Reason.POD_LOST,
    LegEnd.TIMEOUT: Reason.POD_TIMEOUT,
    LegEnd.MALFORMED: Reason.POD_MALFORMED,
    LegEnd.BUSY: Reason.POD_BUSY,
    LegEnd.BROKEN: Reason.POD_BROKEN,
}

Health = Callable[[str, LegEnd], None]
"""Told of every attempt's pod and end; opens breakers."""


class Carrying:
    """Carries placements with what a shell brings. Holds no request's state."""

    def __init__(self, room: Room, *, health: Health, clock: Callable[[], float], patience: Patience) -> None:
        self._room = room
        self._health = health
        self._clock = clock
        self._patience = patience

    async def carry(self, journey: Journey, placement: Placement, carrier: Carrier) -> Leg:
        """Carry a journey's request to where it was placed, and settle. Raises only `asyncio.CancelledError`."""
        journey.last, journey.leg = placement, None
        leg: Leg | None = None
        try:
            leg = await carrier.carry(placement, self._deadline(journey))
        finally:
            self._settle(journey, placement, leg)
        return leg

    def _settle(self, journey: Journey, placement: Placement, leg: Leg | None) -> None:
        """Give back what was charged and learn from what was seen. `leg` is None where the client has gone."""
        now_s = self._clock()
        if leg is not None and leg.end is LegEnd.ANSWERED:
            stored = owned(leg.response_id, journey.caller.tenant.name) if leg.response_id else None
            placement.settle(leg.usage, now_s, answer=leg.answer, response_id=stored)
        if journey.promise.is_bound:
            self._room.settle(placement, leg.usage if leg else None)
        placement.release(now_s)
        journey.leg = leg
        journey.attempts.append(show_attempt(placement, leg.end if leg else "client_gone", leg.usage if leg else None))
        if leg is not None and leg.end is not LegEnd.ANSWERED:
            journey.avoid |= {placement.engine.pod}
        if leg is not None:
            self._health(placement.engine.pod, leg.end)

    def may_try_again(self, journey: Journey, leg: Leg) -> bool:
        """Whether another pod may answer instead, after an attempt that failed."""
        if leg.begun:
            return False
        most = self._patience.attempts_when_broken if leg.end is LegEnd.BROKEN else self._patience.attempts
        failed = sum(attempt.ended != LegEnd.UNCONVINCING for attempt in journey.attempts)
        return failed < most and self._clock() < self._deadline(journey)

    def _deadline(self, journey: Journey) -> float:
        return journey.started_s + self._patience.deadline_s


def refusal_for(leg: Leg) -> Refused:
    """What a client is told whose last attempt ended so."""
    reason = REASON_OF_END[leg.end]
    return Refused(reason, leg.detail or f"The pod that served this request is gone ({leg.end}).", retry_after_s=1.0)
