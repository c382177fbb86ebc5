"""Keeps prefill away from engines that still decode streams of their former role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class RoleDrain:
    """Cost of prefill on an engine whose role has become prefill while it has streams left.

    A prefill engine computes without pause, so that such streams would hardly continue. Each is stalled for the
    request's own prefill. The penalty has a maximum: where the queues of other engines are longer than that, first
    tokens of more requests would be late instead.
    """

    name: ClassVar[str] = "role_drain"
    needs: ClassVar[str] = "draining_streams"
    stall_weight: float = 0.5
    """Weight of a second for which a remaining stream stalls."""
    max_penalty_s: float = 3.0
    """Maximum penalty in seconds."""

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return the penalty per engine; an empty list where no engine drains."""
        if not candidates.draining_streams:
            return []
        return [
            min(self.stall_weight * streams * own_s, self.max_penalty_s)
            for streams, own_s in zip(candidates.draining_streams, candidates.own_s, strict=True)
        ]
