"""Seconds by which streams end late where prefill stalls them for longer than their readers bear."""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, exp, log, sqrt
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request

NOTICED_DEVIATIONS = 3.5
"""Of the lengths' logarithms: stalls by which only shorter answers are late cost nothing."""


@dataclass(frozen=True, slots=True)
class StreamStall:
    """Seconds by which streams there end late: own prefill, for each sequence, times the share that it makes late.

    A stream that decodes makes no token while its engine prefills. Its reader does not notice until the stalls since
    its prompt add up to what it is ahead: `token_slack_s` for each token of its answer. Lengths of answers are learned,
    as a log-normal distribution; those that run at any time are the long ones, in proportion to their length. So a
    stream is late with the probability that such an answer is shorter than its stalls by the slack of a token.
    Not scored where pairs leave a choice: `prefill_stall` prices stalls there.
    """

    name: ClassVar[str] = "stream_stall"
    needs: ClassVar[str] = "stalls_s"
    weight: float = 1.5
    """Weight of a second by which a stream ends late; above 1, since further prefills will follow."""
    token_slack_s: float = 0.03
    """Seconds by which each token of an answer may be late without being noticed."""

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return seconds lost by other streams; an empty list where no stall is long, or pairs leave a choice."""
        tokens, spread = candidates.typical_answer_tokens or candidates.output_tokens, candidates.answer_spread
        slack_s = self.token_slack_s * tokens * exp(spread * spread)
        if slack_s <= 0 or not candidates.stalls_s or candidates.prefill_shares:
            return []
        deviation, half = sqrt(2.0) * spread, self.weight / 2
        noticed_s = slack_s * exp(-NOTICED_DEVIATIONS * spread)
        return [
            running * own * half * (1.0 + erf(log((stall + own / 2) / slack_s) / deviation))
            if own > 0 and stall + own / 2 > noticed_s
            else 0.0
            for running, own, stall in zip(
                candidates.stalled or candidates.running, candidates.own_s, candidates.stalls_s, strict=True
            )
        ]
