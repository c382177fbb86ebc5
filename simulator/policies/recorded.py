"""As recorded: every request goes where it went in reality. Beside it another policy is what would have happened.

Compared on the same simulated engines, so that what is compared is the choice and not the simulator with the world.
"""

from __future__ import annotations

from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request
from simulator.policies.board import Board


class AsRecorded:
    """Where a request's place is not known, or there are fewer engines now, by turns of the engines there are."""

    name: ClassVar[str] = "as-recorded"

    def __init__(self, board: Board) -> None:
        self._board = board

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Zero for the recorded engine."""
        engines = len(candidates.engines)
        recorded = self._board.recorded.get(request.id, 0) % engines
        return [float(place != recorded) for place in range(engines)]
