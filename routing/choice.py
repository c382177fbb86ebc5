"""Chooses among scored engines: the best that may be chosen, with ties broken so that replicas do not herd.

Updates of another replica arrive a few milliseconds late. Until then several routers see the same ledger; if among
equals each took the engine chosen longest ago, a burst would pile up on it. Each replica prefers its own share of the
ring of engines instead, and takes an engine outside it to be busier by this request's own prefill. Draws no number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from routing.candidates import AdmissionGate, Candidates, NoEngineAdmissible, ScoreTable

TIE_S, MAX_TIE_S = 0.001, 0.02
TIE_SHARE = 0.02
"""Candidates closer than this, or than this share of the best, are equal: predictions are no better. Never more than
`MAX_TIE_S` apart: where a prompt takes ten seconds, a fifth of one is still felt."""

SESSION_SCORER = "session_affinity"
"""Without this scorer a routing ignores sessions, among equals too: round robin takes turns."""


def choose(
    scored: ScoreTable, candidates: Candidates, draw: float, seat: ReplicaPosition, gate: AdmissionGate | None
) -> int:
    """The position of the best, if the gate opens it; else of the best that it opens. Raises `NoEngineAdmissible` where
    it opens none. Wary of engines that others may be choosing now.
    """
    totals = penalised(scored.totals, candidates.own_s, seat)
    heeds_sessions = SESSION_SCORER in scored.names
    at = _best(totals, candidates, draw, seat, heeds_sessions=heeds_sessions)
    if gate is None or gate.admits(candidates, at):
        return at
    return _best(_opened(totals, candidates, gate), candidates, draw, seat, heeds_sessions=heeds_sessions)


def _best(
    totals: Sequence[float], candidates: Candidates, draw: float, seat: ReplicaPosition, *, heeds_sessions: bool
) -> int:
    """The position with the least seconds. Among equals the session's, where a routing heeds sessions at all; else the
    one of our share that was chosen longest ago, so that cold prompts spread.
    """
    last_turn, session_at = candidates.last_turn, candidates.session_at if heeds_sessions else None
    least = min(totals)
    bound = least + min(max(TIE_S, TIE_SHARE * least), MAX_TIE_S)
    if session_at is not None and totals[session_at] <= bound:
        return session_at
    if len([total for total in totals if total <= bound]) == 1:
        return totals.index(least)
    near: Sequence[int] = [place for place, total in enumerate(totals) if total <= bound]
    near = own_share(near, len(totals), seat)
    oldest = min(last_turn[place] for place in near)
    equals = [place for place in near if last_turn[place] == oldest]
    return equals[int(draw * len(equals))]


def _opened(totals: Sequence[float], candidates: Candidates, gate: AdmissionGate) -> list[float]:
    """The same seconds, infinite but for those that the gate opens; candidates that cannot win are not tested."""
    left, bound = [inf] * len(totals), inf
    for place in sorted(range(len(totals)), key=totals.__getitem__):
        if totals[place] > bound:
            break
        if gate.admits(candidates, place):
            left[place] = totals[place]
            bound = min(bound, totals[place] + MAX_TIE_S)
    if bound == inf:
        raise NoEngineAdmissible
    return left


ReplicaPosition = tuple[int, int]
"""(our rank, number of replicas)."""

SINGLE_REPLICA: ReplicaPosition = (0, 1)


def replica_position(own: int, others: Iterable[int]) -> ReplicaPosition:
    """Our position by the order of replica ids: replicas that know the same ids get different positions."""
    names = sorted({own, *others})
    return names.index(own), len(names)


def own_share(places: Sequence[int], engines: int, seat: ReplicaPosition) -> Sequence[int]:
    """Those of some places, of a ring of `engines`, that lie in our share or, going round from it, in the next one."""
    rank, count = seat
    if count < 2:
        return places
    share = max(1.0, engines / count)
    start = rank * engines / count
    steps = [(place - start) % engines // share for place in places]
    least = min(steps)
    return [place for place, step in zip(places, steps, strict=True) if step == least]


def penalised(totals: Sequence[float], own_s: Sequence[float], seat: ReplicaPosition) -> Sequence[float]:
    """Seconds as they are for the engines of our share; for all others this request's own prefill there once more.

    Another replica may be placing a similar request there now, and its update would arrive too late. Where a prompt
    is warm its own prefill is short, so that warmth still decides where there is any.
    """
    if seat[1] < 2:
        return totals
    ours = set(own_share(range(len(totals)), len(totals), seat))
    return [
        total if place in ours else total + own for place, (total, own) in enumerate(zip(totals, own_s, strict=True))
    ]
