"""What streams lose to prefill beside them, where pairs leave a choice: those that run there, and later one's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request

MOST_BUSY = 0.5
"""Prefill is taken to take no more of an engine's time: beyond that all are late, and evenly spread queues matter."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A stall is felt by how much of a stream it is: an answer of twenty tokens is ruined by what one of a thousand
    does not notice. One as long as the whole stream counts like `felt_s` seconds of waiting for a first token.

    Of those who decode on an engine: each is stalled for our own prefill. Of ourselves there: where prefill takes the
    share u of an engine's time, a stream takes 1 / (1 - u) times as long. The latter draws streams to where little is
    prefilled, and the former keeps prefill from there, so that engines that may do either come to differ.

    Where a usual prefill is less than `coarse` of a usual stream, stalls even out over it: all of this then counts by
    the square of how far below it is. Nothing is said where no other engine could prefill: somebody must be stalled.
    """

    name: ClassVar[str] = "stall"
    felt_s: float = 0.4
    coarse: float = 0.5

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Seconds, of others' streams and of one's own."""
        stream_s = candidates.usual_stream_s
        if not candidates.prefill_shares or stream_s <= 0:
            return []
        felt_s = self.felt_s * min(1.0, candidates.usual_prefill_s / stream_s / self.coarse) ** 2
        each = min(felt_s / stream_s, 1.0)
        own = felt_s if request.expected_output_tokens > 1 else 0.0
        return [
            running * each * own_s + own * (busy := min(share, MOST_BUSY)) / (1 - busy)
            for running, own_s, share in zip(
                candidates.running, candidates.own_s, candidates.prefill_shares, strict=True
            )
        ]
