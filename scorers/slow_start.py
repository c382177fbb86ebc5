"""Ramps up the work of a pod that has just become ready: its first steps compile, warm up, and may fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class SlowStart:
    """Penalty for pods that became ready recently: each request there counts as seconds of waiting.

    Ages are relative to the oldest candidate's. Where all pods are equally new, as after a start of the gateway, no pod
    can relieve another, and a penalty would only move conversations off their prefixes. A window ends after
    `routing.candidates.NEW_POD_S` at the latest.
    """

    name: ClassVar[str] = "slow_start"
    needs: ClassVar[str] = "has_new_pods"
    window_s: float = 30.0
    """Seconds after a pod became ready in which requests there count as waiting."""
    per_request_s: float = 1.0
    """Seconds of waiting per request there, falling to zero over the window."""

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return the penalty per engine; an empty list where all pods are equally new or older than the window."""
        window_s = self.window_s
        oldest_s = max(min(candidates.ready_since_s), candidates.now_s - window_s)
        if candidates.newest_since_s <= oldest_s:
            return []
        each_s = self.per_request_s / window_s
        return [
            each_s * running * (since - oldest_s) if since > oldest_s else 0.0
            for since, running in zip(candidates.ready_since_s, candidates.running, strict=True)
        ]
