"""Leads a request up its ladder: one rung after the other, until one answers well enough or there is no other.

Which rung is next its `CascadeRun` says, and a judge whether an answer is kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.attempts.attempt import Carrier, Leg, LegEnd
from gateway.cascades.cascade_run import CascadeRun
from gateway.pipeline.attempt_runner import REASON_OF_END, Carrying, refusal_for
from gateway.pipeline.placement import Placing
from gateway.pipeline.request_context import Journey
from routing.rejection import Reason, RequestRejected
from routing.request import Request

Look = Callable[[Request], Awaitable[Request]]

TRY_ANOTHER_MODEL = frozenset(
    {
        *(Reason.NO_POD_READY, Reason.UNKNOWN_MODEL, Reason.REGION_NOT_ALLOWED),
        *(Reason.OVERLOADED, Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT),
        *REASON_OF_END.values(),
    }
)
"""Why a rung does not answer where another may."""


class CascadeRunner:
    """Leads requests up. Holds no request's state."""

    def __init__(self, placing: Placing, carrying: Carrying) -> None:
        self._placing = placing
        self._carrying = carrying

    async def run(self, journey: Journey, carrier: Carrier, look: Look | None) -> None:
        """Until a rung has answered. Raises `RequestRejected` where none can."""
        climb = journey.cascade_run
        assert climb is not None  # noqa: S101 - what calls this has looked
        while True:
            try:
                await self._ask_rung(journey, carrier, climb)
            except RequestRejected as refusal:
                # What one rung cannot do another may, unless the client has seen some of its answer.
                if refusal.reason not in TRY_ANOTHER_MODEL or _has_begun(journey) or not climb.fall_back():
                    raise
            else:
                if journey.leg is None or journey.leg.end is LegEnd.ANSWERED:
                    return
                if not climb.escalate():
                    climb.fall_back()
            await self._step(journey, climb, look)

    async def _ask_rung(self, journey: Journey, carrier: Carrier, climb: CascadeRun) -> None:
        """Until it has answered, well enough or not. Raises `RequestRejected` where it cannot."""
        while True:
            placement = await self._placing.place(journey)
            # What a judge has let through goes on unjudged, whoever goes on with it.
            carrier.judged_by(None if journey.cuts else climb.judge)
            leg: Leg | None = None
            try:
                leg = await self._carrying.carry(journey, placement, carrier)
            finally:
                climb.attempt_ended(leg, journey.last)
            if leg.end is LegEnd.ANSWERED or leg.end is LegEnd.UNCONVINCING:
                return
            if not self._carrying.may_try_again(journey, leg):
                raise refusal_for(leg)

    async def _step(self, journey: Journey, climb: CascadeRun, look: Look | None) -> None:
        """Ask for the rung that it stands on now."""
        if journey.request.lookup is not None:
            journey.request.lookup.listener.over()
        journey.step()
        journey.request = climb.next_request()
        if look is not None:
            journey.request = await look(journey.request)


def _has_begun(journey: Journey) -> bool:
    return journey.leg is not None and journey.leg.begun
