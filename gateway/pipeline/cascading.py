"""Leads a request up its ladder: one rung after the other, until one answers well enough or there is no other.

Which rung is next its `CascadeRun` says, and a judge whether an answer is kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.attempts.attempt import AttemptResult, AttemptStatus, AttemptTransport
from gateway.cascades.cascade_run import CascadeRun
from gateway.pipeline.attempt_runner import REASON_OF_STATUS, AttemptRunner, rejection_for
from gateway.pipeline.placement import PlacementStage
from gateway.pipeline.request_context import RequestContext
from routing.rejection import Reason, RequestRejected
from routing.request import Request

Look = Callable[[Request], Awaitable[Request]]

TRY_ANOTHER_MODEL = frozenset(
    {
        *(Reason.NO_POD_READY, Reason.UNKNOWN_MODEL, Reason.REGION_NOT_ALLOWED),
        *(Reason.OVERLOADED, Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT),
        *REASON_OF_STATUS.values(),
    }
)
"""Why a rung does not answer where another may."""


class CascadeRunner:
    """Leads requests up. Holds no request's state."""

    def __init__(self, placing: PlacementStage, carrying: AttemptRunner) -> None:
        self._placement = placing
        self._attempts = carrying

    async def run(self, journey: RequestContext, carrier: AttemptTransport, look: Look | None) -> None:
        """Until a rung has answered. Raises `RequestRejected` where none can."""
        climb = journey.cascade_run
        assert climb is not None  # noqa: S101 - what calls this has looked
        while True:
            try:
                await self._ask_model(journey, carrier, climb)
            except RequestRejected as refusal:
                # What one rung cannot do another may, unless the client has seen some of its answer.
                if refusal.reason not in TRY_ANOTHER_MODEL or _has_begun(journey) or not climb.fall_back():
                    raise
            else:
                if journey.result is None or journey.result.end is AttemptStatus.ANSWERED:
                    return
                if not climb.escalate():
                    climb.fall_back()
            await self._next_model(journey, climb, look)

    async def _ask_model(self, journey: RequestContext, carrier: AttemptTransport, climb: CascadeRun) -> None:
        """Until it has answered, well enough or not. Raises `RequestRejected` where it cannot."""
        while True:
            placement = await self._placement.place(journey)
            # What a judge has let through goes on unjudged, whoever goes on with it.
            carrier.set_judge(None if journey.cuts else climb.judge)
            leg: AttemptResult | None = None
            try:
                leg = await self._attempts.run(journey, placement, carrier)
            finally:
                climb.attempt_ended(leg, journey.last)
            if leg.end is AttemptStatus.ANSWERED or leg.end is AttemptStatus.UNCONVINCING:
                return
            if not self._attempts.may_retry(journey, leg):
                raise rejection_for(leg)

    async def _next_model(self, journey: RequestContext, climb: CascadeRun, look: Look | None) -> None:
        """Ask for the rung that it stands on now."""
        if journey.request.lookup is not None:
            journey.request.lookup.listener.over()
        journey.next_model()
        journey.request = climb.next_request()
        if look is not None:
            journey.request = await look(journey.request)


def _has_begun(journey: RequestContext) -> bool:
    return journey.result is not None and journey.result.begun
