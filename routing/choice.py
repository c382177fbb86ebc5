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
    """The position with the least seconds that the gate opens, wary of engines that others may be choosing now. Among
    equals the session's, where a routing heeds sessions at all; else the one of our share that was chosen longest ago,
    so that cold prompts spread.
    """
    totals = wary(scored.totals, candidates.own_s, seat)
    if gate is not None:
        totals = _from_first_open(totals, candidates, gate)
    session_at = candidates.session_at if HEEDS_SESSIONS in scored.names else None
    least = min(totals)
    bound = least + min(max(TIE_S, TIE_SHARE * least), TIE_MOST_S)
    if session_at is not None and totals[session_at] <= bound and _is_open(gate, candidates, session_at):
        return session_at
    if len([total for total in totals if total <= bound]) == 1:
        return totals.index(least)
    near = [place for place, total in enumerate(totals) if total <= bound]
    while True:  # At least one of them may be chosen.
        equals = _foremost(near, candidates.last_turn, seat)
        chosen = [place for place in equals if _is_open(gate, candidates, place)]
        if chosen:
            return chosen[int(draw * len(chosen))]
        near = [place for place in near if place not in equals]


def _from_first_open(totals: Sequence[float], candidates: Candidates, gate: Gate) -> Sequence[float]:
    """The same seconds, infinite for those before the least that the gate opens."""
    if gate.opens(candidates, totals.index(min(totals))):
        return totals
    least_at, *others = sorted(range(len(totals)), key=totals.__getitem__)
    left = list(totals)
    left[least_at] = inf
    for place in others:
        if gate.opens(candidates, place):
            return left
        left[place] = inf
    raise NotNow


def _is_open(gate: Gate | None, candidates: Candidates, place: int) -> bool:
    return gate is None or gate.opens(candidates, place)


def _foremost(places: Sequence[int], last_turn: Sequence[int], seat: Seat) -> list[int]:
    """Of engines as good as each other, those of our share that were chosen longest ago."""
    places = nearest(places, len(last_turn), seat)
    oldest = min(last_turn[place] for place in places)
    return [place for place in places if last_turn[place] == oldest]
