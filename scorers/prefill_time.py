"""Seconds until the first token: what is queued for prefill before this request, and its own cold work."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """Predicted TTFT: overhead + queue + own prefill, as learned of each engine, and the steps of other ranks."""

    name: ClassVar[str] = "prefill_time"

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return absolute seconds, so that a warm engine with a long queue compares with a cold idle one."""
        waits = map(add, candidates.prefill_overhead_s, candidates.ahead_s)
        if candidates.lockstep_s:
            waits = map(add, waits, candidates.lockstep_s)
        return list(map(add, waits, candidates.own_s))
