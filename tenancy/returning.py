"""Whoever was refused and comes again: the promise is to the request, so it has been running since it came first.

Without this, a client that was told to come again would be served too late for its own sake and in time for ours only,
at the cost of one who could still have been served in time. Time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict

from routing.request import Request

MEMORY_S = 120.0
"""No client in wide use waits longer before it comes again."""

MOST = 1 << 16

Face = tuple[str | None, str, int, int]
"""By what a request is known again: tenant, model, and its prompt's last block and size."""


def face_of(request: Request, tenant: str | None) -> Face | None:
    """None for a prompt too short to be told from others."""
    prompt = request.prompt
    return (tenant, request.model, prompt.blocks[-1], prompt.size) if prompt.blocks else None


class Returning:
    """Those refused of late, and when each came first."""

    def __init__(self) -> None:
        self._first_s: OrderedDict[Face, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._first_s)

    def first_s(self, face: Face | None, now_s: float) -> float:
        """When a request came first: now, where it is not known."""
        return now_s if face is None else self._first_s.get(face, now_s)

    def refused(self, face: Face | None, came_s: float, now_s: float) -> None:
        """It may come again."""
        first_s = self._first_s
        while first_s and (len(first_s) >= MOST or next(iter(first_s.values())) < now_s - MEMORY_S):
            first_s.popitem(last=False)
        if face is not None:
            first_s.setdefault(face, came_s)

    def served(self, face: Face | None) -> None:
        """Who comes now and looks the same is another."""
        if face is not None:
            self._first_s.pop(face, None)
