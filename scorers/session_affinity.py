"""Keeps a session on its engine when all else is equal, and continues a response where it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class SessionAffinity:
    """Discount for the engine of a request's session.

    The cached prefix of the session is scored by `prefill_time`; this breaks ties only. A request that continues a
    stored response can be answered only where that response is, so its discount is nearly a rule.
    """

    name: ClassVar[str] = "session_affinity"
    needs: ClassVar[str] = "session_at"
    tie_break_s: float = 0.005
    """Discount for the engine that served the session last."""
    stored_response_s: float = 600.0
    """Discount for the engine that stores the response which the request continues."""

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Return negative seconds for the engine of the session, 0 for the others; an empty list without a session."""
        if candidates.session_at is None:
            return []
        seconds = [0.0] * len(candidates.engines)
        seconds[candidates.session_at] = -(self.stored_response_s if request.continues else self.tie_break_s)
        return seconds
