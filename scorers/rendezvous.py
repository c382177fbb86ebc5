"""Keeps new conversations together where gateways cannot exchange updates: all prefer the same engine for a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Discount of the engine that all gateways pick for a prompt that this one does not know, while updates of other
    gateways are missing and for some time after that.

    `weight`: the part of the request's own prefill that is expected to be cached there.
    """

    name: ClassVar[str] = "rendezvous"
    needs: ClassVar[str] = "rendezvous_at"
    weight: float = 0.5

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return negative seconds for the common engine, 0 for the others; an empty list where there is none."""
        at = candidates.rendezvous_at
        if at is None:
            return []
        seconds = [0.0] * len(candidates.engines)
        seconds[at] = -self.weight * candidates.own_s[at]
        return seconds
