"""Why a request went where it went: candidates, predicted and real seconds, predicted and real warm tokens.

A value, made once when the request ends; knows neither where it is kept nor how it is shown.
"""

from __future__ import annotations

from msgspec import Struct

from routing.candidates import CandidateShown, TopCandidates
from routing.decision.placement import Placement
from routing.eligible import PairingFallback
from routing.request import Usage
from routing.retries import FIRST

PRECISE, APPROXIMATE = "precise", "approximate"
"""Indexes of cached tokens."""


class AttemptReceipt(Struct, frozen=True, gc=False):
    """One engine that was tried, in the order of trying."""

    engine: str
    result: str
    candidates: TopCandidates | tuple[CandidateShown, ...]
    """The best of them; written out where they are to be read."""
    candidate_count: int
    predicted_input_tokens: int
    predicted_cached_input_tokens: int
    actual_cached_input_tokens: int | None
    predicted_ttft_s: float
    actual_ttft_s: float | None
    cache_source: str = APPROXIMATE
    """What predicted the cached tokens: the engine's own events (precise), or what was sent to it (approximate)."""
    prefill_engine: str | None = None
    """The engine that did, or was to do, the prefill, where that was another. All warm tokens are then its own."""
    connector: str | None = None
    """How the one hands KV over to the other."""
    prefill_s: float | None = None
    """From the choice to the prefill engine's answer."""
    predicted_transfer_s: float | None = None
    actual_transfer_s: float | None = None
    """From that answer to the first token."""
    fallback_reason: PairingFallback | None = None
    """Why it was no pair where it should have been one, or what its pair came to nothing by."""
    was_unhealthy: bool = False
    """Its pod had failed other requests before, and has completed none since."""
    kind: str = FIRST
    """`FIRST`, `ESCALATION`, or the `RetryKind` of an attempt that follows a failed one."""


def attempt_receipt(
    placement: Placement,
    result: str,
    usage: Usage | None,
    fallback: PairingFallback | None = None,
    *,
    was_unhealthy: bool = False,
    kind: str = FIRST,
) -> AttemptReceipt:
    """The receipt's line for one placement that has ended."""
    predicted, side = placement.predicted, placement.prefill
    first = placement.first_token_s
    return AttemptReceipt(
        engine=placement.engine.name,
        result=result,
        candidates=placement.top_candidates(),
        candidate_count=placement.candidate_count,
        predicted_input_tokens=round(predicted.prompt_tokens),
        predicted_cached_input_tokens=round(predicted.cached_tokens),
        actual_cached_input_tokens=usage.cached_tokens if usage else None,
        predicted_ttft_s=predicted.ttft_s,
        actual_ttft_s=None if first is None else first - placement.placed_s,
        cache_source=PRECISE if _was_seen(placement) else APPROXIMATE,
        prefill_engine=None if side is None else side.engine.name,
        connector=None if side is None else side.transfer.name,
        prefill_s=None if side is None else side.took_s,
        predicted_transfer_s=None if side is None else side.transfer.seconds,
        actual_transfer_s=None if side is None else side.transfer_s,
        fallback_reason=fallback,
        was_unhealthy=was_unhealthy,
        kind=kind,
    )


def _was_seen(placement: Placement) -> bool:
    sight = placement.request.lookup
    return sight is not None and placement.engine.slot in sight.reliable_slots
