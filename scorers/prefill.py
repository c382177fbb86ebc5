"""Seconds until the first token: what is queued for prefill before this request, and its own cold work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class Prefill:
    """overhead + (work ahead + own work) x seconds per token, all as learned of that engine."""

    name: ClassVar[str] = "prefill"

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Absolute seconds; a warm engine with a long queue and a cold idle one are compared as they are."""
        return [
            overhead + (ahead + own) * pace
            for overhead, ahead, own, pace in zip(
                candidates.prefill_overhead_s,
                candidates.ahead_tokens,
                candidates.prefill_work,
                candidates.seconds_per_token,
                strict=True,
            )
        ]
