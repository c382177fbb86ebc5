"""Session affinity: a session stays where its first request went, which is where the fewest requests were."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from routing.candidates import Candidates
from routing.request import Request
from simulator.policies.board import Board


class Affinity:
    """Strict affinity. Without a session name, the first block of the prompt that is not common property is
    used: one that fewer prompts had before than an engine's share of them.
    """

    name: ClassVar[str] = "session-affinity"

    def __init__(self, board: Board) -> None:
        self._board = board
        self._homes: dict[str | int, int] = {}
        self._prompts_with: Counter[int] = Counter()
        self._prompts = 0

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        """Requests in flight, and for the session's own engine less than none."""
        home = self._homes.get(self._session(request, len(candidates.engines)))
        requests = self._board.requests
        return [-1.0 if engine.slot == home else float(requests[engine.slot]) for engine in candidates.engines]

    def chosen(self, request: Request, candidates: Candidates, at: int) -> None:
        """The session lives there from now on."""
        session = self._session(request, len(candidates.engines))
        self._homes.setdefault(session, candidates.engines[at].slot)
        if request.session is None:
            self._prompts += 1
            self._prompts_with.update(request.prompt.blocks)

    def _session(self, request: Request, engines: int) -> str | int:
        if request.session is not None:
            return request.session
        few = self._prompts / engines
        own = (block for block in request.prompt.blocks if self._prompts_with[block] <= few)
        return next(own, request.id)
