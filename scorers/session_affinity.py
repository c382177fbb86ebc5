"""Keeps a session where it was when all else is equal, and a continued response where it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class Session:
    """Seconds that the engine of a request's session is worth.

    `stay_s` only breaks ties: what a session is really worth is its warm prefix, which the prefill scorer sees.
    `stored_s` is nearly a rule: a response that continues another can be answered only where that one is stored.
    """

    name: ClassVar[str] = "session"
    stay_s: float = 0.005
    stored_s: float = 600.0

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Negative for the engine of the session, zero for the others."""
        if candidates.session_at is None:
            return []
        seconds = [0.0] * len(candidates.engines)
        seconds[candidates.session_at] = -(self.stored_s if request.continues else self.stay_s)
        return seconds
