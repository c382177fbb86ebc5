"""Round robin: the engine chosen longest ago. A baseline that ignores cached tokens and load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Penalty that grows with how recently an engine was chosen."""

    name: ClassVar[str] = "round_robin"

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return the count of choices at which each was last chosen, as seconds: only their order matters."""
        return [float(turn) for turn in candidates.last_turn]
