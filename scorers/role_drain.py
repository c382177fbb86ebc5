"""Keeps prefill away from engines that still decode streams of their former role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class RoleDrain:
    """Cost of prefill on an engine whose role has become prefill while it has streams left.

    A prefill engine computes without pause, so that such streams would hardly go on. Each is stalled for our own
    prefill; a second of that counts `stall_weight` of a second of TTFT. At most `max_penalty_s`: where the others'
    queue is longer than that, first tokens would be late instead, and of more requests.
    """

    name: ClassVar[str] = "role_drain"
    needs: ClassVar[str] = "draining_streams"
    stall_weight: float = 0.5
    max_penalty_s: float = 3.0

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return the penalty per engine; an empty list where no engine drains."""
        if not candidates.draining_streams:
            return []
        return [
            min(self.stall_weight * streams * own_s, self.max_penalty_s)
            for streams, own_s in zip(candidates.draining_streams, candidates.own_s, strict=True)
        ]
