"""Where routers that share engines sit around them, so that those who see the same do not all choose the same.

News of what another has just placed take a moment. Within it several routers see the same ledger; if among equals each
took the one chosen longest ago, a burst would pile up on it. Each prefers its own share of the ring of engines instead,
and takes an engine beyond it to be as much busier as this request would make it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Seat = tuple[int, int]
"""(which of them we are, how many there are)."""

ALONE: Seat = (0, 1)


def seat_among(own: int, others: Iterable[int]) -> Seat:
    """Our seat, by the order of names: everybody who knows the same names finds another one for himself."""
    names = sorted({own, *others})
    return names.index(own), len(names)


def nearest(places: Sequence[int], engines: int, seat: Seat) -> Sequence[int]:
    """Those of some places, of a ring of `engines`, that lie in our share or, going round from it, in the next one."""
    rank, count = seat
    if count < 2:
        return places
    share = max(1.0, engines / count)
    start = rank * engines / count
    steps = [(place - start) % engines // share for place in places]
    least = min(steps)
    return [place for place, step in zip(places, steps, strict=True) if step == least]


def wary(totals: Sequence[float], own_s: Sequence[float], seat: Seat) -> Sequence[float]:
    """Seconds as they are for the engines of our share; for all others this request's own prefill there once more.

    Whoever else is asked at this moment may be putting the like there, and we shall hear of it too late. Where a prompt
    is warm its own prefill is short, so that warmth still decides where there is any.
    """
    if seat[1] < 2:
        return totals
    ours = set(nearest(range(len(totals)), len(totals), seat))
    return [
        total if place in ours else total + own for place, (total, own) in enumerate(zip(totals, own_s, strict=True))
    ]
