"""Least loaded: the engine with the least prefill work and the fewest sequences. A baseline, ignores cached tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class LeastLoaded:
    """Seconds of prefill queued, and one step for every sequence there."""

    name: ClassVar[str] = "least_loaded"

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Seconds that stand before a request whatever its prompt is."""
        return [
            ahead + running * step
            for ahead, running, step in zip(candidates.ahead_s, candidates.running, candidates.step_base_s, strict=True)
        ]
