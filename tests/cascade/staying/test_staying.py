"""Thresholds that follow shadows: never below the calibrated ones, and given up when they do not help."""

from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade.ladder_file import ANY_BUCKET, Cut, Evidence, LadderFile, Map, Promise, Stage
from cascade.staying.staying import CEILING, PACE, Staying
from cascade.verdict import Verdict, judge

FILE = LadderFile(
    *(("small", "middle", "large"), "margin", Stage.WINDOW, Promise(0.02, 0.95), Evidence(1_000, "sha256:0", kept=0.4)),
    cuts=(
        Cut(0, ANY_BUCKET, 0.5, grey=0.1),
        Cut(1, ANY_BUCKET, 0.3, map=Map((0.0, 1.0), (0.5, 0.0))),
        Cut(1, "x", inf),
    ),
    is_promised=True,
)


def test_what_is_allowed_is_the_promise_among_the_kept() -> None:
    """2 points of all are 5 of the 40 % that are kept."""
    assert Staying(FILE).allowed == pytest.approx(0.05)
    assert Staying(FILE, harmless=0.2).allowed == pytest.approx(0.25)


def test_agreement_leaves_the_file_as_it_is() -> None:
    """Calibrated thresholds are the floor."""
    staying = Staying(FILE)
    for _ in range(100):
        staying.take(0, 1.0)
    assert staying.file == FILE
    assert (staying.shadows, staying.agreement, staying.alarm) == (100, 1.0, False)


def test_a_worse_answer_makes_its_rung_stricter() -> None:
    """And no other; what was just good enough climbs now."""
    staying = Staying(FILE)
    staying.take(0, 0.0)
    assert judge(FILE, 0, "chat", 0.5) is Verdict.KEEP
    assert judge(staying.file, 0, "chat", 0.5) is Verdict.ESCALATE
    assert staying.file.cut(1, "chat") == FILE.cut(1, "chat")
    assert staying.correction == (PACE * 0.95, 0.0)


SUREST = replace(FILE, cuts=(Cut(0, ANY_BUCKET, 1.0, map=Map((0.0, 1.0), (0.5, 0.0))), Cut(1, ANY_BUCKET, 0.3)))
"""Only answers at the greatest margin there is are kept."""


def test_a_threshold_does_not_rise_past_the_range_of_its_signal() -> None:
    """A share of the answers at its greatest value is kept, fewer with each worse shadow, so that shadows go on."""
    staying = Staying(SUREST)
    shares = []
    for _ in range(3):
        staying.take(0, 0.0)
        cut = staying.file.cut(0, "chat")
        assert cut is not None
        shares.append(cut.edge_share)
        assert judge(staying.file, 0, "chat", 1.0, draw=0.5) is Verdict.KEEP
        assert judge(staying.file, 0, "chat", 1.0, draw=cut.edge_share) is Verdict.ESCALATE
        assert judge(staying.file, 0, "chat", 0.99, draw=0.0) is Verdict.ESCALATE
    assert 1.0 > shares[0] > shares[1] > shares[2] > 0.0
    for _ in range(100):
        staying.take(0, 1.0)
    assert staying.file == SUREST


def test_answers_that_are_not_kept_ease_a_rung_that_keeps_none() -> None:
    """By as much as good shadows would; an ended promise stays ended."""
    staying, shadowed = Staying(FILE), Staying(FILE)
    staying.take(0, 0.0)
    shadowed.take(0, 0.0)
    for _ in range(5):
        staying.ease(0)
        shadowed.take(0, 1.0)
    assert 0.0 < staying.correction[0] == shadowed.correction[0] < PACE
    for _ in range(30):
        staying.ease(0)
    assert staying.file == FILE
    for _ in range(200):
        staying.take(0, 0.0)
    staying.ease(0)
    assert not staying.file.is_promised


def test_chance_is_forgiven() -> None:
    """Good shadows bring it back down."""
    staying = Staying(FILE)
    staying.take(1, 0.0)
    for _ in range(30):
        staying.take(1, 1.0)
    assert staying.file == FILE


def test_drift_is_given_up() -> None:
    """When every other kept answer is worse nothing is kept any more, and later shadows change nothing."""
    random, staying = Random(1), Staying(FILE)
    for _ in range(200):
        staying.take(0, float(random.random() < 0.5))
    assert staying.alarm
    assert not staying.file.is_promised
    shadows = staying.shadows
    staying.take(0, 1.0)
    assert staying.shadows == shadows < 200


def test_traffic_as_calibrated_rings_no_alarm() -> None:
    """At the rate that is allowed, over 3,000 shadows (seeded)."""
    random, staying = Random(2), Staying(FILE)
    for _ in range(3_000):
        staying.take(0, float(random.random() >= 0.04))
    assert not staying.alarm
    assert staying.strain < 1.0


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(0, 1)), max_size=200))
def test_thresholds_stay_within_bounds(shadows: list[tuple[int, float]]) -> None:
    """Whatever shadows say: never looser than calibrated, never above the ceiling, infinite ones infinite."""
    staying = Staying(FILE)
    for rung, agreed in shadows:
        staying.take(rung, agreed)
    assert all(0.0 <= steps <= CEILING for steps in staying.correction)
    for cut, calibrated in zip(staying.file.cuts, FILE.cuts, strict=True):
        assert cut.threshold >= calibrated.threshold
        assert cut.threshold <= calibrated.threshold + CEILING * 0.1 + 1e-9
