"""Stalls of streams by prefill on the same engine, where pairs leave a choice: of those running, and of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request

MAX_PREFILL_SHARE = 0.5
"""Largest share of an engine's time counted for prefill: beyond it all are late, and evenly spread queues matter."""


@dataclass(frozen=True, slots=True)
class PrefillStallCost:
    """Cost of stalled decoding, relative to the length of the stream that stalls.

    A stall as long as the whole stream counts like `felt_s` seconds of TTFT: an answer of twenty tokens is ruined by a
    stall that one of a thousand does not notice.

    Streams that decode on an engine are each stalled for our own prefill. Our own stream there: where prefill takes the
    share u of an engine's time, a stream takes 1 / (1 - u) times as long. The latter draws streams to where little is
    prefilled, and the former keeps prefill from there, so that engines that may do either come to differ.

    Where a usual prefill is less than `coarse` of a usual stream, stalls even out over it: all of this then counts by
    the square of how far below it is. 0 where no other engine could prefill, since some stream must be stalled.
    """

    name: ClassVar[str] = "prefill_stall"
    needs: ClassVar[str] = "prefill_shares"
    ttft_equivalent_s: float = 0.4
    min_prefill_ratio: float = 0.5

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return seconds lost by other streams and by our own; an empty list where pairs leave no choice."""
        stream_s = candidates.typical_stream_s
        if not candidates.prefill_shares or stream_s <= 0:
            return []
        felt_s = (
            self.ttft_equivalent_s * min(1.0, candidates.typical_prefill_s / stream_s / self.min_prefill_ratio) ** 2
        )
        each = min(felt_s / stream_s, 1.0)
        own = felt_s if candidates.output_tokens > 1 else 0.0
        return [
            running * each * own_s + own * (busy := min(share, MAX_PREFILL_SHARE)) / (1 - busy)
            for running, own_s, share in zip(
                candidates.stalled or candidates.running, candidates.own_s, candidates.prefill_shares, strict=True
            )
        ]
