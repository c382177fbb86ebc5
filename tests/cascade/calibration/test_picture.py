"""The picture: well-formed, whole, and of any calibration."""

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from cascade.calibration.calibrate import Calibration, Subject, calibrate
from cascade.calibration.picture import MOST_POINTS, draw
from cascade.ladder_file import Promise, Stage
from tests.cascade.calibration.labels import UNKNOWN, rungs_of_three, telling

SUBJECT = Subject(("small", "large"), "margin", Stage.WINDOW)
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
