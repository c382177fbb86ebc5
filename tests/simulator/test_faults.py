"""Faults: read from JSON, counted by requests."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.faults import NO_FAULT, Fault, FaultKind, Spot, Trouble, parse_fault


def test_a_fault_is_read_from_its_json_form() -> None:
    """With what it is and how much of it."""
    assert parse_fault({"kind": "cut", "after_chunks": 3, "requests": 2}) == Fault(
        FaultKind.CUT, after_chunks=3, requests=2
    )
    assert parse_fault({"kind": "slow", "factor": 2.5}).factor == 2.5
    assert parse_fault({"kind": "refuse", "is_late": True}).is_late
    assert parse_fault({"kind": "damage", "spot": "frame"}).spot is Spot.FRAME
    assert parse_fault({"kind": "none"}) == NO_FAULT


@pytest.mark.parametrize(
    ("order", "word"),
    [
        ([], "object"),
        ({}, "kind"),
        ({"kind": "explode"}, "kind"),
        ({"kind": "cut", "chunks": 1}, "chunks"),
        ({"kind": "cut", "after_chunks": "3"}, "after_chunks"),
        ({"kind": "cut", "after_chunks": True}, "after_chunks"),
        ({"kind": "cut", "after_chunks": -1}, "after_chunks"),
        ({"kind": "slow", "factor": 0}, "factor"),
        ({"kind": "refuse", "requests": 0}, "requests"),
        ({"kind": "refuse", "is_late": 1}, "is_late"),
        ({"kind": "cut", "spot": "somewhere"}, "spot"),
        ({"kind": "die", "requests": 1}, "requests"),
    ],
    ids=str,
)
def test_nonsense_is_refused_by_name(order: Any, word: str) -> None:
    """The message says which field is wrong."""
    with pytest.raises((ValueError, TypeError), match=word):
        parse_fault(order)


def test_a_counted_fault_wears_off() -> None:
    """So many requests, then none."""
    trouble = Trouble()
    trouble.begin(Fault(FaultKind.REJECT, requests=2))
    assert [trouble.befall().kind for _ in range(3)] == [FaultKind.REJECT, FaultKind.REJECT, FaultKind.NONE]


def test_a_lasting_fault_lasts() -> None:
    """Until it is taken back."""
    trouble = Trouble()
    trouble.begin(Fault(FaultKind.ERROR))
    assert [trouble.befall().kind for _ in range(3)] == [FaultKind.ERROR] * 3
    trouble.begin(NO_FAULT)
    assert trouble.befall() == NO_FAULT
