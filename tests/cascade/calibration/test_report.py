"""Reports of calibrations as text and as a picture."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from xml.etree import ElementTree as ET

import pytest

from cascade.calibration.calibrate import Calibration, Subject, calibrate
from cascade.calibration.replay import replay
from cascade.calibration.report import MOST_POINTS, draw, tell_file, tell_promise, tell_replay
from cascade.calibration_file import Cut, Promise, Stage
from tests.cascade.calibration.labels import UNKNOWN, rungs_of_three, telling

SUBJECT = Subject(("small", "large"), "margin", Stage.WINDOW)
FILE = calibrate(telling(1_000), SUBJECT, Promise(0.03, 0.95)).file


def test_a_guarantee_is_told_with_its_evidence() -> None:
    """Threshold, loss, cost, fingerprint."""
    told = tell_file(FILE)
    for words in (
        "small -> large",
        "lose at most 3 points, 95 % sure",
        "from margin",
        "1,000",
        FILE.evidence.fingerprint[:15],
    ):
        assert words in told


def test_what_cannot_be_guaranteed_is_said_with_what_would_do() -> None:
    """How many examples, how many more, and who answers."""
    told = tell_promise(replace(FILE, is_promised=False, evidence=replace(FILE.evidence, needs=1_500)))
    assert "cannot promise this with 1,000 examples" in told
    assert "about 1,500 would do, 500 more" in told
    assert "large answers" in told
    assert "no number of examples" in tell_promise(replace(FILE, is_promised=False))


def test_a_replay_says_whether_the_guarantee_held() -> None:
    """On those examples."""
    assert "within the promise" in tell_replay(FILE, replay(FILE, telling(500, seed=9)))
    loose = replace(FILE, cuts=(Cut(0, "*", -inf),))
    assert "ABOVE the promise" in tell_replay(loose, replay(loose, telling(500, seed=9)))


def test_edges_and_nevers_are_told() -> None:
    """What is kept by lot, and what not at all."""
    cuts = (Cut(0, "a", 1.0, edge=0.5, edge_share=0.25), Cut(0, "b", inf), Cut(0, "c", inf, edge=2.0, edge_share=0.5))
    told = tell_file(replace(FILE, cuts=cuts))
    assert "from margin 1 on and 25% of those at 0.5" in told
    assert "small, b: never" in told
    assert "small, c: 50% of those at 2" in told


PROMISED = calibrate(telling(2_000), SUBJECT, Promise(0.03, 0.95))
EMPTY = calibrate([UNKNOWN] * 3, SUBJECT, Promise(0.01, 0.95))
THREE = calibrate(rungs_of_three(300), replace(SUBJECT, models=("a<b", "b&c", "c")), Promise(0.03, 0.95))


@pytest.mark.parametrize("found", [PROMISED, EMPTY, THREE], ids=["promised", "nothing known", "three rungs"])
def test_it_is_an_svg_with_all_its_marks(found: Calibration) -> None:
    """Both ends and what was chosen, inside of the picture, whatever the models are called."""
    root = ET.fromstring(draw(found))
    marks = [element for element in root.iter() if element.tag.endswith("circle")]
    assert len(marks) == 3
    assert all(0 <= float(mark.get("cx", -1)) <= 640 and 0 <= float(mark.get("cy", -1)) <= 400 for mark in marks)
    told = " ".join(root.itertext())
    assert ("chosen" if found.file.is_promised else "nothing promised") in told
    assert found.file.models[0] in told


def test_long_ways_are_thinned() -> None:
    """A picture has no use for every one of a million rules."""
    lines = [line for line in draw(PROMISED).splitlines() if line.startswith("<polyline")]
    assert max(line.count(",") for line in lines) <= MOST_POINTS * 2
