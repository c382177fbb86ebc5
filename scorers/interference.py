"""What this request costs everyone else: those who decode there, those queued beside it, and those who were warm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class Interference:
    """Seconds lost by others, each part with a weight: what a second of theirs counts against one until our own token.

    `weight`, on those who decode: running x (own prefill + own output x what a sequence adds to a step). A token that
    comes a little later inside a stream is felt less than a first token that does not come.
    `sharing`, on those who would get their first token with the step that this prefill joins: how many they are x what
    of it still fits into that step. A question of a few words behind which a long document is put waits for a step's
    fill of the document. Where the step has begun, nobody joins it.
    `crowding`, on those who come later: own prefill x this. Little while others can go elsewhere (0.08 in a queue for
    eight engines that are busy 40 % of the time, by the mean of M/G/n), and yet the reason why siblings wait for the
    first one's prefill instead of each repeating it for a tenth of a second.
    `displacing`, on those who were warm: what is computed anew displaces as much of what was there. How much of that
    will be computed again is learned; it weighs more than its own seconds, because it comes in somebody's way. Nothing
    where caches have room, or where what they forget is not asked for again. At most own prefill once more, and of
    that `most_s`: who waits long already is not to wait for the good of the cache.
    """

    name: ClassVar[str] = "interference"
    weight: float = 0.03
    sharing: float = 0.5
    crowding: float = 0.08
    displacing: float = 7.0
    most_s: float = 1.5

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Seconds lost by others, weighted."""
        weight, crowding, most_s = self.weight, self.crowding, self.most_s
        decode = weight * request.expected_output_tokens
        displaced = min(self.displacing * candidates.displaced_share, 1.0)
        each, most = crowding + displaced, displaced * most_s
        seconds = [
            running * (weight * own + decode * slower) + (each * own if own < most_s else crowding * own + most)
            for own, running, slower in zip(
                candidates.own_s, candidates.running, candidates.step_per_sequence_s, strict=True
            )
        ]
        for at, ending, room in candidates.open_steps:
            work = candidates.prefill_work[at]
            seconds[at] += self.sharing * ending * candidates.own_s[at] * (room / work if work > room else 1.0)
        return seconds
