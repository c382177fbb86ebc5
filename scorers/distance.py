"""Adds the round trip to engines that are far away, such as those of a provider in another region."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class Distance:
    """Seconds of a round trip to each engine, times `weight`."""

    name: ClassVar[str] = "distance"
    needs: ClassVar[str] = "distances_s"
    weight: float = 1.0
    """Weight of a second of the round trip."""

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return the seconds per engine; an empty list where none is far."""
        return [self.weight * each for each in candidates.distances_s]
