"""Looking up in a calibration: thresholds by bucket, curves between their knots, and the verdict on one answer."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest

from cascade.calibration_file import ANY_BUCKET, Cut, Evidence, LadderFile, Map, Promise, Stage, Verdict, judge


def file_of(*cuts: Cut, is_promised: bool = True) -> LadderFile:
    promise, evidence = Promise(0.01, 0.95), Evidence(1_000, "sha256:00")
    return LadderFile(("a", "b", "c"), "margin", Stage.WINDOW, promise, evidence, cuts, is_promised)


def test_a_bucket_has_its_own_cut_first() -> None:
    """Then the one for any, in whatever order they stand; none where nothing was calibrated."""
    own, any_ = Cut(0, "code", 0.5), Cut(0, ANY_BUCKET, 0.7)
    for file in (file_of(own, any_), file_of(any_, own)):
        assert file.cut(0, "code") == own
        assert file.cut(0, "chat") == any_
        assert file.cut(1, "code") is None


def test_what_may_keep() -> None:
    """Only below an infinite threshold, and only under a guarantee."""
    assert file_of(Cut(0, "code", 0.5)).may_keep(0, "code")
    assert not file_of(Cut(0, "code", inf)).may_keep(0, "code")
    assert not file_of(Cut(0, "code", 0.5), is_promised=False).may_keep(0, "code")


@pytest.mark.parametrize(("signal", "benefit"), [(-9, 0.4), (0, 0.4), (0.5, 0.3), (1, 0.2), (3, -0.1), (9, -0.1)])
def test_maps_are_straight_between_knots(signal: float, benefit: float) -> None:
    """And level beyond their ends."""
    assert Map((0.0, 1.0, 3.0), (0.4, 0.2, -0.1)).at(signal) == pytest.approx(benefit)


def test_what_is_not_known_is_worth_escalating() -> None:
    """Without a map or a signal the next model is worth everything."""
    assert Map((), ()).at(0.5) == inf
    assert Map((0.0,), (0.1,)).at(nan) == inf


def test_a_guarantee_in_words() -> None:
    """As reports say it."""
    assert str(Promise(0.01, 0.95)) == "lose at most 1 points, 95 % sure"


FILE = LadderFile(
    *(("small", "large"), "margin", Stage.WINDOW, Promise(0.01, 0.95), Evidence(1_000, "sha256:00")),
    cuts=(Cut(0, ANY_BUCKET, 0.5),),
    is_promised=True,
)
EMPTY = LadderFile(("small", "large"), "margin", Stage.WINDOW, FILE.promise, FILE.evidence)


@pytest.mark.parametrize(
    ("signal", "verdict"), [(0.5, "keep"), (0.49, "escalate"), (nan, "escalate"), (None, "escalate")]
)
def test_a_full_window_is_decided(signal: float | None, verdict: str) -> None:
    """From the threshold on an answer is kept; what is not known never is."""
    assert judge(FILE, 0, "chat", signal) is Verdict(verdict)


def test_lots_decide_at_the_edge() -> None:
    """Of the answers right there a share is kept, and none where nobody draws."""
    file = replace(FILE, cuts=(Cut(0, ANY_BUCKET, inf, edge=0.5, edge_share=0.3),))
    assert judge(file, 0, "chat", 0.5, draw=0.29) is Verdict.KEEP
    assert judge(file, 0, "chat", 0.5, draw=0.3) is Verdict.ESCALATE
    assert judge(file, 0, "chat", 0.5) is Verdict.ESCALATE
    assert judge(file, 0, "chat", 0.51, draw=0.0) is Verdict.ESCALATE
    assert file.may_keep(0, "chat")


def test_without_a_guarantee_nothing_is_kept() -> None:
    """Nor at a model that was not calibrated."""
    assert judge(EMPTY, 0, "chat", 1.0) is Verdict.ESCALATE
    assert judge(FILE, 1, "chat", 1.0) is Verdict.ESCALATE
