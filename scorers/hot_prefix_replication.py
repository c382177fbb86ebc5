"""Has a hot prefix computed once more, on purpose, where waiting for the engines that hold it costs more than that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request


@dataclass(frozen=True, slots=True)
class Copies:
    """`worth`: what a second that others have lately waited for this prefix (`routing.demand`) counts against one of
    computing it again. At most the price of the copy is paid for by it.
    """

    name: ClassVar[str] = "copies"
    worth: float = 1.0

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Negative for engines that would make a copy; silent where nobody has waited."""
        paid_s = self.worth * candidates.waited_s
        if paid_s <= 0:
            return []
        least_s = min(candidates.own_s)
        return [-min(paid_s, own - least_s) for own in candidates.own_s]
