"""Stalls of streams by prefill on the same engine, where pairs leave a choice: of those running, and of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.facts import Role
from routing.request import Request

MAX_PREFILL_SHARE = 0.6
"""Largest share of an engine's time counted for prefill: beyond it all are late, and evenly spread queues matter."""


@dataclass(frozen=True, slots=True)
class PrefillStallCost:
    """Cost of stalled decoding, relative to the length of the stream that stalls.

    A stall as long as the whole stream counts like `ttft_equivalent_s` seconds of TTFT: a stall that ruins an answer of
    twenty tokens is not noticed in one of a thousand.

    Streams that decode on an engine are each stalled for our own prefill. Our own stream there: where prefill takes the
    share u of an engine's time, a stream takes 1 / (1 - u) times as long. The latter draws streams to where little is
    prefilled, and the former keeps prefill from there, so that engines that may do either come to differ. An
    engine without streams is not kept from prefill: the next burst takes `burst_share` of its time, however idle it is
    now, and the more streams it has the less.

    Where a usual prefill is less than `min_prefill_ratio` of the median stream, stalls even out over it: all of this
    then counts by the cube of how far below it is. The median, because a few long answers would hide that most are
    short. Until an answer was seen they are taken to be short: a transfer too many costs less than a ruined stream.
    0 where no other engine could prefill, since some stream must be stalled.
    """

    name: ClassVar[str] = "prefill_stall"
    needs: ClassVar[str] = "prefill_shares"
    ttft_equivalent_s: float = 0.4
    """Seconds of TTFT that a stall as long as the whole stream counts as."""
    min_prefill_ratio: float = 0.5
    """Ratio of a typical prefill to the median stream below which stalls count less."""
    burst_share: float = 0.6
    """Share of an idle engine's time that the next burst is assumed to prefill."""

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return seconds lost by other streams and by our own; an empty list where pairs leave no choice."""
        if not candidates.prefill_shares:
            return []
        coarse_s = candidates.typical_prefill_s / self.min_prefill_ratio
        median_s, stream_s = candidates.median_stream_s or coarse_s, candidates.typical_stream_s or coarse_s
        coarseness = min(1.0, coarse_s / median_s) if median_s else 1.0
        felt_s = self.ttft_equivalent_s * coarseness**3
        each = min(felt_s / stream_s, 1.0) if stream_s else 1.0
        own = felt_s if candidates.output_tokens > 1 else 0.0
        return [
            stalled * each * own_s + own * (busy := min(max(share, burst), MAX_PREFILL_SHARE)) / (1 - busy)
            for stalled, own_s, share, burst in zip(
                candidates.stalled or candidates.running,
                candidates.own_s,
                candidates.prefill_shares,
                self._bursts(candidates),
                strict=True,
            )
        ]

    def _bursts(self, candidates: Candidates) -> list[float]:
        """Return the share of time that the prefill of a burst would take of each engine: none where its role is
        `decode`.
        """
        bursts = [self.burst_share / (1.0 + running) for running in candidates.running]
        if not candidates.has_decode_engines:
            return bursts
        return [
            0.0 if engine.role is Role.DECODE else burst
            for engine, burst in zip(candidates.engines, bursts, strict=True)
        ]
