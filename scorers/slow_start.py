"""Ramps up the work of a pod that has just become ready: its first steps compile, warm up, and may fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class SlowStart:
    """For `window_s` after a pod became ready each request there counts as `each_s` of waiting, falling to zero.

    A window ends after `routing.candidates.NEW_POD_S` at the latest.
    """

    name: ClassVar[str] = "slow_start"
    needs: ClassVar[str] = "has_new_pods"
    window_s: float = 30.0
    per_request_s: float = 1.0

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return the penalty per engine; an empty list where all pods have been ready for longer than the window."""
        now_s, window_s, each_s = candidates.now_s, self.window_s, self.per_request_s
        if now_s - candidates.newest_since_s >= window_s:
            return []
        return [
            each_s * running * (1 - (now_s - since) / window_s) if now_s - since < window_s else 0.0
            for since, running in zip(candidates.ready_since_s, candidates.running, strict=True)
        ]
