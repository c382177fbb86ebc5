"""What this request costs everyone else: those who decode there, those queued beside it, and those who come later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request

BUSIEST = 0.9
"""A queue at a full engine grows without end: the price of work does not."""


@dataclass(frozen=True, slots=True)
class Interference:
    """Seconds lost by others, each part with a weight: what a second of theirs counts against one until our own token.

    `weight`, on those who decode: running x (own prefill + own output x what a sequence adds to a step). A token that
    comes a little later inside a stream is felt less than a first token that does not come.
    `sharing`, on those who would get their first token with the step that this prefill joins: how many they are x what
    of it still fits into that step. A question of a few words behind which a long document is put waits for a step's
    fill of the document. Where the step has begun, nobody joins it.
    `crowding`, on those who come later: arrivals per second x own x (queue + own / 2) / idle share. So many come while
    this is in prefill, each waits for half of it, and waits are handed on until the queue runs empty (the mean of an
    M/G/1 queue); others could go elsewhere, hence the weight. So warmth counts for more as engines fill, and long
    prompts look for short queues.
    `displacing`, on those who were warm: what is computed anew displaces as much of what was there, so own prefill
    counts again, up to `most_s` of it: who waits long already is not to wait for the good of the cache.
    """

    name: ClassVar[str] = "interference"
    weight: float = 0.05
    sharing: float = 0.7
    crowding: float = 0.3
    displacing: float = 1.0
    most_s: float = 1.0

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Seconds lost by others, weighted."""
        weight, displacing, most_s = self.weight, self.displacing, self.most_s
        rate = self.crowding * candidates.arrivals_per_s / (1 - min(candidates.busy_share, BUSIEST))
        half, decode, displaced_s = rate / 2, weight * request.expected_output_tokens, displacing * most_s
        seconds = [
            running * (weight * own + decode * slower)
            + own * (rate * ahead + half * own)
            + (displacing * own if own < most_s else displaced_s)
            for own, ahead, running, slower in zip(
                candidates.own_s, candidates.ahead_s, candidates.running, candidates.step_per_sequence_s, strict=True
            )
        ]
        for at, ending, room in candidates.open_steps:
            work = candidates.prefill_work[at]
            seconds[at] += self.sharing * ending * candidates.own_s[at] * (room / work if work > room else 1.0)
        return seconds
