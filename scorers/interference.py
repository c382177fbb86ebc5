"""Seconds that this request costs others: those decoding there, queued beside it, or whose cached prefix it evicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class Interference:
    """Seconds lost by other requests, each part with a weight against a second of the request's own TTFT.

    Four groups of requests lose time:

    - those that decode there: running x (own prefill + own output x what a sequence adds to a step). A token that comes
      a little later inside a stream is felt less than a late first token. Where engines step together, those of all
      ranks count (`routing.lockstep`);
    - those that would get their first token with the step that this prefill joins: their number x the part of it that
      still fits into that step. A short prompt waits for the part of a long document that fills its step. A step that
      has begun cannot be joined;
    - those that come later: own prefill. The weight is small while they can go elsewhere (0.08 in a queue for eight
      engines that are busy 40 % of the time, by the mean of M/G/n). It is the reason why requests with one prefix wait
      for the first one's prefill instead of each repeating it for a tenth of a second;
    - those whose prefix is cached there: what is computed evicts as much. The share of it that will be computed again
      is learned. It is 0 where caches have room, or where evicted prefixes are not requested again. At most own prefill
      once more.
    """

    name: ClassVar[str] = "interference"
    decode_weight: float = 0.03
    """Weight of a second that streams on the engine lose."""
    batch_weight: float = 0.5
    """Weight of a second by which first tokens of the same step are late."""
    queue_weight: float = 0.08
    """Weight of a second for requests that come later."""
    eviction_weight: float = 7.0
    """Weight of a second that computing evicted prefixes again takes: it delays another request."""
    max_eviction_s: float = 1.5
    """Maximum own prefill seconds that count for evictions, so that a long prompt does not wait for the cache."""

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Seconds lost by others, weighted."""
        weight, crowding, most_s = self.decode_weight, self.queue_weight, self.max_eviction_s
        decode = weight * candidates.output_tokens
        displaced = min(self.eviction_weight * candidates.displaced_share, 1.0)
        each, cap = crowding + displaced, displaced * most_s
        seconds = [
            stalled * weight * own + slowed * decode * slower + (each * own if own < most_s else crowding * own + cap)
            for own, stalled, slowed, slower in zip(
                candidates.own_s,
                candidates.stalled or candidates.running,
                candidates.slowed or candidates.running,
                candidates.step_per_sequence_s,
                strict=True,
            )
        ]
        for at, ending, room in candidates.open_steps:
            work = candidates.prefill_work[at]
            seconds[at] += self.batch_weight * ending * candidates.own_s[at] * (room / work if work > room else 1.0)
        return seconds
