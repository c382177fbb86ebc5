"""Leads a request up its ladder: one rung after the other, until one answers well enough or there is no other.

Which rung is next its `Climb` says, and a judge whether an answer is kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.cascades.cascade_run import Climb
from gateway.pipeline.attempt import Carrier, Leg, LegEnd
from gateway.pipeline.attempt_runner import REASON_OF_END, Carrying, refusal_for
from gateway.pipeline.placement import Placing
from gateway.pipeline.request_context import Journey
from routing.rejection import Reason, Refused
from routing.request import Request

Look = Callable[[Request], Awaitable[Request]]

ANOTHER_RUNG = frozenset(
    {
        *(Reason.NO_POD_READY, Reason.UNKNOWN_MODEL, Reason.REGION_NOT_ALLOWED),
        *(Reason.OVERLOADED, Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT),
        *REASON_OF_END.values(),
    }
)
"""Why a rung does not answer where another may."""


class Climbing:
    """Leads requests up. Holds no request's state."""

    def __init__(self, placing: Placing, carrying: Carrying) -> None:
        self._placing = placing
        self._carrying = carrying

    async def climb(self, journey: Journey, carrier: Carrier, look: Look | None) -> None:
        """Until a rung has answered. Raises `Refused` where none can."""
        climb = journey.climb
        assert climb is not None  # noqa: S101 - what calls this has looked
        while True:
            try:
                await self._ask_rung(journey, carrier, climb)
            except Refused as refusal:
                # What one rung cannot do another may, unless the client has seen some of its answer.
                if refusal.reason not in ANOTHER_RUNG or _has_begun(journey) or not climb.fall_back():
                    raise
            else:
                if journey.leg is None or journey.leg.end is LegEnd.ANSWERED:
                    return
                if not climb.rise():
                    climb.fall_back()
            await self._step(journey, climb, look)

    async def _ask_rung(self, journey: Journey, carrier: Carrier, climb: Climb) -> None:
        """Until it has answered, well enough or not. Raises `Refused` where it cannot."""
        while True:
            placement = await self._placing.place(journey)
            # What a judge has let through goes on unjudged, whoever goes on with it.
            carrier.judged_by(None if journey.cuts else climb.judge)
            leg: Leg | None = None
            try:
                leg = await self._carrying.carry(journey, placement, carrier)
            finally:
                climb.ended(leg, journey.last)
            if leg.end is LegEnd.ANSWERED or leg.end is LegEnd.UNCONVINCING:
                return
            if not self._carrying.may_try_again(journey, leg):
                raise refusal_for(leg)

    async def _step(self, journey: Journey, climb: Climb, look: Look | None) -> None:
        """Ask for the rung that it stands on now."""
        if journey.request.sight is not None:
            journey.request.sight.watch.over()
        journey.step()
        journey.request = climb.ask()
        if look is not None:
            journey.request = await look(journey.request)


def _has_begun(journey: Journey) -> bool:
    return journey.leg is not None and journey.leg.begun
