"""What this request costs everyone already running there: its prefill stalls them, its decode slows their steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class Interference:
    """weight x running x (own prefill seconds + own output tokens x seconds a sequence adds to a step).

    `weight` is what a second lost by others counts against a second of our own first token: a token that comes a little
    later inside a stream is felt less than a first token that does not come.
    """

    name: ClassVar[str] = "interference"
    weight: float = 0.05

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Seconds lost by others, weighted."""
        weight, output = self.weight, float(request.expected_output_tokens)
        return [
            weight * running * (own * pace + output * slower)
            for running, own, pace, slower in zip(
                candidates.running,
                candidates.prefill_work,
                candidates.seconds_per_token,
                candidates.step_per_sequence_s,
                strict=True,
            )
        ]
