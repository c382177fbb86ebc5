"""Has a placed request carried to its engine, and settles what came of it.

Whatever happens, also a cancel in the tick of a grant, the ledger gets back what was charged. Says what may be tried
again; who is asked next is not decided here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from gateway.attempts.attempt import Carrier, Leg, LegEnd
from gateway.pairs.pairs import Pairs
from gateway.pipeline.admission_queue import Room
from gateway.pipeline.request_context import Journey
from routing.decision.placement import Placement
from routing.decision.receipt import AttemptReceipt, attempt_receipt
from routing.eligible import PairingFallback
from routing.reading import scoped_name
from routing.rejection import Reason, RequestRejected
from routing.retries import AttemptKind, RetryBudget, RetryTerms

REASON_OF_END = {
    LegEnd.UNREACHABLE: Reason.POD_UNREACHABLE,
    LegEnd.LOST: Reason.POD_LOST,
    LegEnd.TIMEOUT: Reason.POD_TIMEOUT,
    LegEnd.HUNG: Reason.POD_TIMEOUT,
    LegEnd.MALFORMED: Reason.POD_MALFORMED,
    LegEnd.BUSY: Reason.POD_BUSY,
    LegEnd.BROKEN: Reason.POD_BROKEN,
    LegEnd.UNWILLING: Reason.POD_LOST,
    LegEnd.DIFFERENT: Reason.POD_LOST,
    LegEnd.STALLED: Reason.POD_TIMEOUT,
}

Health = Callable[[str, LegEnd], bool | None]
"""Told of every attempt's pod and end; opens breakers. Returns whether the pod was failing others before that,
as far as it is known.
"""


MOST_FALLBACKS = 2
"""After so many pairs that came to nothing a request is prefilled where it is answered."""

DECODE_PODS_OWN = frozenset({None, PairingFallback.DECODE_FAILED})
"""What an attempt's end says of the pod that was to answer, as if there had been no pair."""

GONE = frozenset({LegEnd.LOST, LegEnd.HUNG})
"""The engine does nothing for anybody any more: who leaves it takes up no room there."""

WITHOUT_KV = frozenset({PairingFallback.TRANSFER_STALLED, PairingFallback.TRANSFER_FAILED})
"""Whoever has lost so much time is not to lose it again."""


UNCOUNTED = frozenset({LegEnd.UNCONVINCING, LegEnd.UNREACHABLE})
"""No pod has failed the request: one has answered, or has seen nothing of it."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often a request is tried."""

    deadline_s: float = 600.0
    """From arrival to the first byte: after it no other pod is tried."""
    resume_s: float = 30.0
    """From a cut to the first byte of what is left."""
    retries: RetryTerms = field(default_factory=RetryTerms)
    among: int = 1
    """So many processes share what they allow."""


class Carrying:
    """Carries placements with what a shell brings. Holds no request's state."""

    def __init__(
        self,
        room: Room,
        *,
        health: Health,
        clock: Callable[[], float],
        patience: Patience,
        pairs: Pairs,
        budget: RetryBudget,
    ) -> None:
        self._budget = budget
        self._pairs = pairs
        self._room = room
        self._health = health
        self._clock = clock
        self._patience, self._retries = patience, patience.retries

    async def carry(self, journey: Journey, placement: Placement, carrier: Carrier) -> Leg:
        """Carry a journey's request to where it was placed, and settle. Raises only `asyncio.CancelledError`."""
        journey.last, journey.leg = placement, None
        leg: Leg | None = None
        try:
            leg = await self._carried(placement, carrier, self._deadline(journey))
        finally:
            self._settle(journey, placement, leg)
        return leg

    def _carried(self, placement: Placement, carrier: Carrier, by_s: float) -> Awaitable[Leg]:
        side = placement.prefill
        return carrier.carry(placement, by_s) if side is None else self._pairs.carry(placement, side, carrier, by_s)

    def _settle(self, journey: Journey, placement: Placement, leg: Leg | None) -> None:
        """Give back what was charged and learn from what was seen. `leg` is None where the client has gone."""
        now_s = self._clock()
        try:
            if leg is not None and leg.end is LegEnd.ANSWERED:
                stored = scoped_name(leg.response_id, journey.caller.tenant.name) if leg.response_id else None
                placement.settle(leg.usage, now_s, answer=leg.answer, response_id=stored)
        finally:
            try:
                if journey.promise.is_bound:
                    self._room.settle(placement, leg.usage if leg else None)
            finally:
                placement.release(now_s)
        if leg is not None:
            journey.ended(placement, leg, now_s)
        fallback = placement.fallback if leg is None else leg.fallback or placement.fallback
        ended, usage = (leg.end, leg.usage) if leg is not None else ("client_gone", None)
        was_failing = leg is not None and self._tell(placement, leg)
        journey.attempts.append(attempt_receipt(placement, ended, usage, fallback, was_failing=was_failing))
        if leg is not None:
            self._judge(journey, placement, leg)

    def _tell(self, placement: Placement, leg: Leg) -> bool:
        """Tell how its pods did. Returns whether the one that was to answer was failing others before."""
        side = placement.prefill
        if side is not None and side.done_s is not None:
            self._health(side.engine.pod, LegEnd.ANSWERED)
        if leg.blames is not None:
            self._health(leg.blames, leg.end)
            return False
        return leg.fallback in DECODE_PODS_OWN and bool(self._health(placement.engine.pod, leg.end))

    def _judge(self, journey: Journey, placement: Placement, leg: Leg) -> None:
        """What the next attempt is to be without, after one that ended so."""
        if leg.blames is not None:
            journey.avoid |= {leg.blames}
        elif leg.fallback in DECODE_PODS_OWN and leg.end is not LegEnd.ANSWERED:
            journey.avoid |= {placement.engine.pod}
        if leg.fallback in WITHOUT_KV or _fallbacks(journey) >= MOST_FALLBACKS:
            journey.request = replace(journey.request, is_single_engine=True)

    def may_try_again(self, journey: Journey, leg: Leg) -> bool:
        """Whether another pod may answer instead, or go on, after an attempt that failed."""
        if leg.begun or journey.cuts:
            # Where the other half of a pair has failed what is left of an answer, nobody was asked for it: it stands.
            is_left = leg.rest is not None or not leg.begun
            may = is_left and journey.cuts <= self._retries.cuts and self._clock() < self._deadline(journey)
            return may and self._budget.take(AttemptKind.RESUME)
        asked = [attempt for attempt in journey.tried if _counts(attempt)]
        failed = sum(not attempt.was_failing for attempt in asked)
        may = self._retries.may_retry(failed, len(asked)) and self._clock() < self._deadline(journey)
        return may and (leg.end is LegEnd.UNREACHABLE or self._budget.take(_try_after(journey, leg)))

    def _deadline(self, journey: Journey) -> float:
        if journey.cut_s is not None:
            return journey.cut_s + self._patience.resume_s
        return journey.started_s + self._patience.deadline_s


def _try_after(journey: Journey, leg: Leg) -> AttemptKind:
    """What another attempt is, after one that ended so before its client had any of it. Of an engine that was not
    reached nothing was asked: to ask another then is a first attempt still.
    """
    if journey.cuts:
        return AttemptKind.RESUME
    return AttemptKind.FAILOVER if leg.end in GONE else AttemptKind.RETRY


def _fallbacks(journey: Journey) -> int:
    """How often a pair has come to nothing."""
    return sum(attempt.prefill is not None and attempt.fallback is not None for attempt in journey.tried)


def _counts(attempt: AttemptReceipt) -> bool:
    """Whether it is one of the few attempts of a request: not where it failed by the other half of a pair, nor where
    nobody was there to be asked.
    """
    if attempt.ended in UNCOUNTED:
        return False
    return attempt.prefill is None or attempt.fallback in DECODE_PODS_OWN


def refusal_for(leg: Leg) -> RequestRejected:
    """What a client is told whose last attempt ended so."""
    reason = REASON_OF_END[leg.end]
    return RequestRejected(
        reason, leg.detail or f"The pod that served this request is gone ({leg.end}).", retry_after_s=1.0
    )
