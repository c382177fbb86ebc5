"""Replicates a hot prefix: has another engine compute it where waiting for those that hold it costs more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class HotPrefixReplication:
    """Discount for computing a prefix on one more engine, at most the cost of the copy (`routing.demand`)."""

    name: ClassVar[str] = "hot_prefix_replication"
    needs: ClassVar[str] = "waited_s"
    weight: float = 1.0
    """Weight of a second that requests waited recently for the prefix, against a second of computing it again."""

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return negative seconds for engines that would make a copy; an empty list where no request has waited."""
        paid_s = self.weight * candidates.waited_s
        if paid_s <= 0:
            return []
        min_s = min(candidates.own_s)
        return [-min(paid_s, own - min_s) for own in candidates.own_s]
