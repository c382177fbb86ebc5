"""Reports of calibrations as text and as a picture."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from xml.etree import ElementTree as ET

import pytest

from cascade.calibration.calibrate import CalibrationResult, CalibrationTarget, calibrate
from cascade.calibration.replay import replay
from cascade.calibration.report import MAX_POINTS, describe_calibration, describe_guarantee, describe_replay, draw_svg
from cascade.calibration_file import AcceptanceThreshold, QualityGuarantee, SignalStage
from tests.cascade.calibration.labels import UNKNOWN, informative_examples, three_models

SUBJECT = CalibrationTarget(("small", "large"), "margin", SignalStage.WINDOW)
FILE = calibrate(informative_examples(1_000), SUBJECT, QualityGuarantee(0.03, 0.95)).file


def test_a_guarantee_is_reported_with_its_evidence() -> None:
    """Threshold, loss, cost, fingerprint."""
    reported = describe_calibration(FILE)
    for words in (
        "small -> large",
        "lose at most 3 points, 95 % sure",
        "from margin",
        "1,000",
        FILE.evidence.fingerprint[:15],
    ):
        assert words in reported


def test_what_cannot_be_guaranteed_is_reported_with_what_would_do() -> None:
    """How many examples, how many more, and who answers."""
    reported = describe_guarantee(replace(FILE, is_promised=False, evidence=replace(FILE.evidence, needs=1_500)))
    assert "cannot promise this with 1,000 examples" in reported
    assert "about 1,500 would do, 500 more" in reported
    assert "large answers" in reported
    assert "no number of examples" in describe_guarantee(replace(FILE, is_promised=False))


def test_a_replay_says_whether_the_guarantee_held() -> None:
    """On those examples."""
    assert "within the promise" in describe_replay(FILE, replay(FILE, informative_examples(500, seed=9)))
    loose = replace(FILE, cuts=(AcceptanceThreshold(0, "*", -inf),))
    assert "ABOVE the promise" in describe_replay(loose, replay(loose, informative_examples(500, seed=9)))


def test_edges_and_nevers_are_reported() -> None:
    """What is kept by lot, and what not at all."""
    cuts = (
        AcceptanceThreshold(0, "a", 1.0, edge=0.5, edge_share=0.25),
        AcceptanceThreshold(0, "b", inf),
        AcceptanceThreshold(0, "c", inf, edge=2.0, edge_share=0.5),
    )
    reported = describe_calibration(replace(FILE, cuts=cuts))
    assert "from margin 1 on and 25% of those at 0.5" in reported
    assert "small, b: never" in reported
    assert "small, c: 50% of those at 2" in reported


PROMISED = calibrate(informative_examples(2_000), SUBJECT, QualityGuarantee(0.03, 0.95))
EMPTY = calibrate([UNKNOWN] * 3, SUBJECT, QualityGuarantee(0.01, 0.95))
THREE = calibrate(three_models(300), replace(SUBJECT, models=("a<b", "b&c", "c")), QualityGuarantee(0.03, 0.95))


@pytest.mark.parametrize("found", [PROMISED, EMPTY, THREE], ids=["promised", "nothing known", "three rungs"])
def test_it_is_an_svg_with_all_its_marks(found: CalibrationResult) -> None:
    """Both ends and what was chosen, inside of the picture, whatever the models are called."""
    root = ET.fromstring(draw_svg(found))
    marks = [element for element in root.iter() if element.tag.endswith("circle")]
    assert len(marks) == 3
    assert all(0 <= float(mark.get("cx", -1)) <= 640 and 0 <= float(mark.get("cy", -1)) <= 400 for mark in marks)
    reported = " ".join(root.itertext())
    assert ("chosen" if found.file.is_promised else "nothing promised") in reported
    assert found.file.models[0] in reported


def test_long_ways_are_thinned() -> None:
    """A picture has no use for every one of a million rules."""
    lines = [line for line in draw_svg(PROMISED).splitlines() if line.startswith("<polyline")]
    assert max(line.count(",") for line in lines) <= MAX_POINTS * 2
