"""Seconds by which streams end late where prefill stalls them for longer than their readers bear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class StreamStall:
    """Own prefill, for each sequence that runs there, times the share of streams that it makes late.

    A stream that decodes makes no token while its engine prefills. Its reader does not notice until the stalls add up
    to what the stream is ahead: `token_slack_s` for each token of its answer. The share of streams that are beyond it
    grows as the square of their stalls, `late_share` at the slack of a typical answer: few answers are much shorter.
    So prefill keeps away from engines that have done little else for a while and decode many streams.
    Not scored where pairs leave a choice: `prefill_stall` prices stalls there.
    """

    name: ClassVar[str] = "stream_stall"
    needs: ClassVar[str] = "stalls_s"
    late_share: float = 0.2
    token_slack_s: float = 0.036

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return seconds lost by other streams; an empty list where pairs leave a choice."""
        slack_s = self.token_slack_s * (candidates.typical_answer_tokens or candidates.output_tokens)
        if slack_s <= 0 or candidates.prefill_shares:
            return []
        each = self.late_share / (slack_s * slack_s)
        return [
            running * own * min(each * (stall + own / 2) * (stall + own / 2), 1.0)
            for running, own, stall in zip(candidates.running, candidates.own_s, candidates.stalls_s, strict=True)
        ]
