"""Ladders in the configuration: a calibration that cannot hold at work is a fault of the file."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cascade.ladder_file import ANY_BUCKET, Cut, LadderFile, Stage
from cascade.ladder_json import write_ladder_file
from gateway.config.sources import check_file
from tenancy.document import Invalid
from tests.scenarios.rungs import ladder_file


def faults_of(folder: Path, file: LadderFile) -> str:
    """What `config check` reports of a ladder with this calibration."""
    (folder / "auto.json").write_bytes(write_ladder_file(file))
    ladder = {"model_name": "auto", "ladder": ["small", "big"], "calibration": str(folder / "auto.json")}
    (folder / "hearth.yaml").write_text(json.dumps({"model_list": [ladder]}))
    try:
        check_file(folder / "hearth.yaml", {})
    except Invalid as invalid:
        return "\n".join(map(str, invalid.faults))
    return ""


def test_a_calibration_of_known_signals_is_taken(tmp_path: Path) -> None:
    """Of an answer, or of the prompt."""
    assert faults_of(tmp_path, ladder_file(0.5)) == ""
    assert faults_of(tmp_path, ladder_file(-3.0, signal="ease", stage=Stage.PROMPT)) == ""


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (ladder_file(0.5, signal="confidence"), "signal: the gateway cannot compute the signal `confidence`"),
        (ladder_file(0.5, signal="id", stage=Stage.PROMPT), "signal: the gateway cannot compute the signal `id`"),
        (ladder_file(0.5, stage=Stage.PROMPT), "cannot compute the signal `margin` from the prompt"),
        (
            replace(ladder_file(0.5), cuts=(Cut(0, ANY_BUCKET, 0.5), Cut(0, "law", 0.1))),
            "cuts[1].bucket: the gateway never computes the bucket `law`",
        ),
    ],
)
def test_a_calibration_that_the_gateway_cannot_follow_is_a_fault(tmp_path: Path, file: LadderFile, told: str) -> None:
    """By the path of the ladder and by what is wrong in its calibration."""
    found = faults_of(tmp_path, file)
    assert "model_list[0].calibration" in found
    assert told in found
