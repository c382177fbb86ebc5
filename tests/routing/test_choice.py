"""Who is chosen when a gate has a say: the best of all that are open, though few are asked about."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.ballot import Scored
from routing.candidates import Candidates, NotNow
from routing.choice import TIE_S, choose
from routing.ledger import Pledge
from routing.seat import ALONE, Seat
from tests.scorers.columns import candidates_of


class Door:
    """A gate that opens some positions, and remembers about which it was asked."""

    pledge: Pledge | None = None

    def __init__(self, opened: Sequence[bool]) -> None:
        self._opened = opened
        self.asked: list[int] = []

    def opens(self, candidates: Candidates, at: int) -> bool:
        self.asked.append(at)
        return self._opened[at]


def scored(totals: Sequence[float]) -> Scored:
    return Scored(("session",), (totals,), totals)


Engines = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.1 + TIE_S / 2, 0.1 + 2 * TIE_S, 3.0]), st.booleans(), st.integers(0, 3)),
    min_size=1,
    max_size=9,
)


@given(Engines, st.integers(-1, 8), st.floats(0.0, 0.99), st.sampled_from([ALONE, (0, 3), (2, 3)]))
def test_the_choice_is_the_best_that_is_open(
    engines: list[tuple[float, bool, int]], session: int, draw: float, seat: Seat
) -> None:
    """The best where it is open, else what is chosen where all that are shut count as infinitely far: whatever ties,
    session and seat.
    """
    totals, opened, turns = ([each[column] for each in engines] for column in range(3))
    session_at = session if 0 <= session < len(engines) else None
    candidates = candidates_of(len(engines), last_turn=turns, session_at=session_at)
    gate = Door([bool(each) for each in opened])
    if not any(opened):
        with pytest.raises(NotNow):
            choose(scored(totals), candidates, draw, seat, gate)
        return
    best = choose(scored(totals), candidates, draw, seat, None)
    allowed = [total if is_open else inf for total, is_open in zip(totals, opened, strict=True)]
    best_allowed = choose(scored(allowed), candidates, draw, seat, None)
    assert choose(scored(totals), candidates, draw, seat, gate) == (best if opened[best] else best_allowed)


def test_of_a_hundred_only_the_best_is_asked_about() -> None:
    """Admission costs no pass of its own where it has no objection."""
    gate = Door([True] * 100)
    totals = [1.0 + at for at in range(100)]
    assert choose(scored(totals), candidates_of(100), 0.5, ALONE, gate) == 0
    assert gate.asked == [0]


def test_who_is_worse_than_the_first_open_one_is_not_asked_about() -> None:
    """In the order of their seconds, and no further."""
    gate = Door([False, False, True, True])
    assert choose(scored([0.2, 0.1, 0.4, 0.6]), candidates_of(4), 0.5, ALONE, gate) == 2
    assert set(gate.asked) == {0, 1, 2}
