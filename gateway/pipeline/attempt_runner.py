"""Has a placed request carried to its engine, and settles what came of it.

Whatever happens, also a cancel in the tick of a grant, the ledger gets back what was charged. Says what may be tried
again; who is asked next is not decided here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from gateway.attempts.attempt import AttemptResult, AttemptStatus, AttemptTransport
from gateway.pairs.pairs import PairTransport
from gateway.pipeline.admission_queue import AdmissionQueue
from gateway.pipeline.request_context import RequestContext
from routing.decision.placement import Placement
from routing.decision.receipt import AttemptReceipt, attempt_receipt
from routing.eligible import PairingFallback
from routing.reading import scoped_name
from routing.rejection import Reason, RequestRejected
from routing.retries import AttemptKind, RetryBudget, RetryTerms

REASON_OF_STATUS = {
    AttemptStatus.UNREACHABLE: Reason.POD_UNREACHABLE,
    AttemptStatus.LOST: Reason.POD_LOST,
    AttemptStatus.TIMEOUT: Reason.POD_TIMEOUT,
    AttemptStatus.HUNG: Reason.POD_TIMEOUT,
    AttemptStatus.MALFORMED: Reason.POD_MALFORMED,
    AttemptStatus.BUSY: Reason.POD_BUSY,
    AttemptStatus.BROKEN: Reason.POD_BROKEN,
    AttemptStatus.UNWILLING: Reason.POD_LOST,
    AttemptStatus.DIFFERENT: Reason.POD_LOST,
    AttemptStatus.STALLED: Reason.POD_TIMEOUT,
}

Health = Callable[[str, AttemptStatus], bool | None]
"""Told of every attempt's pod and end; opens breakers. Returns whether the pod was failing others before that,
as far as it is known.
"""


MAX_FALLBACKS = 2
"""After so many pairs that came to nothing a request is prefilled where it is answered."""

DECODE_PODS_OWN = frozenset({None, PairingFallback.DECODE_FAILED})
"""What an attempt's end says of the pod that was to answer, as if there had been no pair."""

GONE = frozenset({AttemptStatus.LOST, AttemptStatus.HUNG})
"""The engine does nothing for anybody any more: who leaves it takes up no room there."""

WITHOUT_KV = frozenset({PairingFallback.TRANSFER_STALLED, PairingFallback.TRANSFER_FAILED})
"""Whoever has lost so much time is not to lose it again."""


UNCOUNTED = frozenset({AttemptStatus.UNCONVINCING, AttemptStatus.UNREACHABLE})
"""No pod has failed the request: one has answered, or has seen nothing of it."""


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """How long and how often a request is tried."""

    deadline_s: float = 600.0
    """From arrival to the first byte: after it no other pod is tried."""
    resume_s: float = 30.0
    """From a cut to the first byte of what is left."""
    retries: RetryTerms = field(default_factory=RetryTerms)
    processes: int = 1
    """So many processes share what they allow."""


class AttemptRunner:
    """Carries placements with what a shell brings. Holds no request's state."""

    def __init__(
        self,
        room: AdmissionQueue,
        *,
        health: Health,
        clock: Callable[[], float],
        patience: AttemptLimits,
        pairs: PairTransport,
        budget: RetryBudget,
    ) -> None:
        self._budget = budget
        self._pairs = pairs
        self._room = room
        self._health = health
        self._clock = clock
        self._patience, self._retries = patience, patience.retries

    async def run(self, journey: RequestContext, placement: Placement, carrier: AttemptTransport) -> AttemptResult:
        """Carry a journey's request to where it was placed, and settle. Raises only `asyncio.CancelledError`."""
        journey.last, journey.result = placement, None
        leg: AttemptResult | None = None
        try:
            leg = await self._carried(placement, carrier, self._deadline(journey))
        finally:
            self._settle(journey, placement, leg)
        return leg

    def _carried(self, placement: Placement, carrier: AttemptTransport, by_s: float) -> Awaitable[AttemptResult]:
        side = placement.prefill
        return (
            carrier.run_attempt(placement, by_s)
            if side is None
            else self._pairs.run_attempt(placement, side, carrier, by_s)
        )

    def _settle(self, journey: RequestContext, placement: Placement, leg: AttemptResult | None) -> None:
        """Give back what was charged and learn from what was seen. `leg` is None where the client has gone."""
        now_s = self._clock()
        try:
            if leg is not None and leg.end is AttemptStatus.ANSWERED:
                stored = scoped_name(leg.response_id, journey.caller.tenant.name) if leg.response_id else None
                placement.settle(leg.usage, now_s, answer=leg.answer, response_id=stored)
        finally:
            try:
                if journey.objective.is_bound:
                    self._room.settle(placement, leg.usage if leg else None)
            finally:
                placement.release(now_s)
        if leg is not None:
            journey.end_attempt(placement, leg, now_s)
        fallback = placement.fallback if leg is None else leg.fallback or placement.fallback
        ended, usage = (leg.end, leg.usage) if leg is not None else ("client_gone", None)
        was_failing = leg is not None and self._tell(placement, leg)
        journey.attempts.append(attempt_receipt(placement, ended, usage, fallback, was_failing=was_failing))
        if leg is not None:
            self._judge(journey, placement, leg)

    def _tell(self, placement: Placement, leg: AttemptResult) -> bool:
        """Tell how its pods did. Returns whether the one that was to answer was failing others before."""
        side = placement.prefill
        if side is not None and side.done_s is not None:
            self._health(side.engine.pod, AttemptStatus.ANSWERED)
        if leg.blames is not None:
            self._health(leg.blames, leg.end)
            return False
        return leg.fallback in DECODE_PODS_OWN and bool(self._health(placement.engine.pod, leg.end))

    def _judge(self, journey: RequestContext, placement: Placement, leg: AttemptResult) -> None:
        """What the next attempt is to be without, after one that ended so."""
        if leg.blames is not None:
            journey.avoid |= {leg.blames}
        elif leg.fallback in DECODE_PODS_OWN and leg.end is not AttemptStatus.ANSWERED:
            journey.avoid |= {placement.engine.pod}
        if leg.fallback in WITHOUT_KV or _fallbacks(journey) >= MAX_FALLBACKS:
            journey.request = replace(journey.request, is_single_engine=True)

    def may_retry(self, journey: RequestContext, leg: AttemptResult) -> bool:
        """Whether another pod may answer instead, or go on, after an attempt that failed."""
        if leg.begun or journey.cuts:
            # Where the other half of a pair has failed what is left of an answer, nobody was asked for it: it stands.
            is_left = leg.continuation is not None or not leg.begun
            may = is_left and journey.cuts <= self._retries.cuts and self._clock() < self._deadline(journey)
            return may and self._budget.take(AttemptKind.RESUME)
        asked = [attempt for attempt in journey.model_attempts if _counts(attempt)]
        failed = sum(not attempt.was_failing for attempt in asked)
        may = self._retries.may_retry(failed, len(asked)) and self._clock() < self._deadline(journey)
        return may and (leg.end is AttemptStatus.UNREACHABLE or self._budget.take(_try_after(journey, leg)))

    def _deadline(self, journey: RequestContext) -> float:
        if journey.cut_s is not None:
            return journey.cut_s + self._patience.resume_s
        return journey.started_s + self._patience.deadline_s


def _try_after(journey: RequestContext, leg: AttemptResult) -> AttemptKind:
    """What another attempt is, after one that ended so before its client had any of it. Of an engine that was not
    reached nothing was asked: to ask another then is a first attempt still.
    """
    if journey.cuts:
        return AttemptKind.RESUME
    return AttemptKind.FAILOVER if leg.end in GONE else AttemptKind.RETRY


def _fallbacks(journey: RequestContext) -> int:
    """How often a pair has come to nothing."""
    return sum(attempt.prefill is not None and attempt.fallback is not None for attempt in journey.model_attempts)


def _counts(attempt: AttemptReceipt) -> bool:
    """Whether it is one of the few attempts of a request: not where it failed by the other half of a pair, nor where
    nobody was there to be asked.
    """
    if attempt.ended in UNCOUNTED:
        return False
    return attempt.prefill is None or attempt.fallback in DECODE_PODS_OWN


def rejection_for(leg: AttemptResult) -> RequestRejected:
    """What a client is told whose last attempt ended so."""
    reason = REASON_OF_STATUS[leg.end]
    return RequestRejected(
        reason, leg.detail or f"The pod that served this request is gone ({leg.end}).", retry_after_s=1.0
    )
