"""Which of the scored engines it is: the best that may be chosen, and who goes first among equals.

Knows nothing of how seconds came about, nor why an engine may not be chosen; draws no number.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from routing.ballot import Scored
from routing.candidates import Candidates, Gate, NotNow
from routing.seat import Seat, nearest, wary

TIE_S, TIE_MOST_S = 0.001, 0.02
TIE_SHARE = 0.02
"""Candidates closer than this, or than this share of the best, are equal: predictions are no better. Never more than
`TIE_MOST_S` apart: where a prompt takes ten seconds, a fifth of one is still felt."""

HEEDS_SESSIONS = "session"
"""The scorer without which a routing is blind to sessions, among equals too: round robin takes turns."""


def choose(scored: Scored, candidates: Candidates, draw: float, seat: Seat, gate: Gate | None) -> int:
    """The position of the best, if the gate opens it; else of the best that it opens. Raises `NotNow` where it opens
    none. Wary of engines that others may be choosing now.
    """
    totals = wary(scored.totals, candidates.own_s, seat)
    heeds_sessions = HEEDS_SESSIONS in scored.names
    at = _best(totals, candidates, draw, seat, heeds_sessions=heeds_sessions)
    if gate is None or gate.opens(candidates, at):
        return at
    return _best(_opened(totals, candidates, gate), candidates, draw, seat, heeds_sessions=heeds_sessions)


def _best(totals: Sequence[float], candidates: Candidates, draw: float, seat: Seat, *, heeds_sessions: bool) -> int:
    """The position with the least seconds. Among equals the session's, where a routing heeds sessions at all; else the
    one of our share that was chosen longest ago, so that cold prompts spread.
    """
    last_turn, session_at = candidates.last_turn, candidates.session_at if heeds_sessions else None
    least = min(totals)
    bound = least + min(max(TIE_S, TIE_SHARE * least), TIE_MOST_S)
    if session_at is not None and totals[session_at] <= bound:
        return session_at
    if len([total for total in totals if total <= bound]) == 1:
        return totals.index(least)
    near: Sequence[int] = [place for place, total in enumerate(totals) if total <= bound]
    near = nearest(near, len(totals), seat)
    oldest = min(last_turn[place] for place in near)
    equals = [place for place in near if last_turn[place] == oldest]
    return equals[int(draw * len(equals))]


def _opened(totals: Sequence[float], candidates: Candidates, gate: Gate) -> list[float]:
    """The same seconds, infinite but for those that the gate opens; who cannot be the choice is not asked about."""
    left, bound = [inf] * len(totals), inf
    for place in sorted(range(len(totals)), key=totals.__getitem__):
        if totals[place] > bound:
            break
        if gate.opens(candidates, place):
            left[place] = totals[place]
            bound = min(bound, totals[place] + TIE_MOST_S)
    if bound == inf:
        raise NotNow
    return left
