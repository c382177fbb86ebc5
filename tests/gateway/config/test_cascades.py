"""Cascades in the configuration: a calibration that cannot hold in production is a fault of the file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cascade.calibration_file import ANY_BUCKET, AcceptanceThreshold, CalibrationFile, SignalStage
from cascade.calibration_json import write_calibration_file
from gateway.config.loading import check_file
from tenancy.document import InvalidDocument
from tests.scenarios.cascade_pods import calibration_file


def faults_of(folder: Path, file: CalibrationFile) -> str:
    """What `config check` reports of a cascade with this calibration."""
    (folder / "auto.json").write_bytes(write_calibration_file(file))
    cascade = {"models": ["small", "big"], "calibration": str(folder / "auto.json")}
    (folder / "hearth.yaml").write_text(json.dumps({"model_list": [{"model_name": "auto", "cascade": cascade}]}))
    try:
        check_file(folder / "hearth.yaml", {})
    except InvalidDocument as invalid:
        return "\n".join(map(str, invalid.errors))
    return ""


def test_a_calibration_of_known_signals_is_taken(tmp_path: Path) -> None:
    """Of an answer, or of the prompt."""
    assert faults_of(tmp_path, calibration_file(0.5)) == ""
    assert faults_of(tmp_path, calibration_file(-3.0, signal="ease", stage=SignalStage.PROMPT)) == ""


@pytest.mark.parametrize(
    ("file", "reported"),
    [
        (calibration_file(0.5, signal="confidence"), "signal: the gateway cannot compute the signal `confidence`"),
        (
            calibration_file(0.5, signal="id", stage=SignalStage.PROMPT),
            "signal: the gateway cannot compute the signal `id`",
        ),
        (calibration_file(0.5, stage=SignalStage.PROMPT), "cannot compute the signal `margin` from the prompt"),
        (
            replace(
                calibration_file(0.5),
                cuts=(AcceptanceThreshold(0, ANY_BUCKET, 0.5), AcceptanceThreshold(0, "law", 0.1)),
            ),
            "cuts[1].bucket: the gateway never computes the bucket `law`",
        ),
    ],
)
def test_a_calibration_that_the_gateway_cannot_follow_is_a_fault(
    tmp_path: Path, file: CalibrationFile, reported: str
) -> None:
    """By the path of the cascade and by what is wrong in its calibration."""
    found = faults_of(tmp_path, file)
    assert "model_list[0].cascade.calibration" in found
    assert reported in found


def test_buckets_that_requests_name_are_listed(tmp_path: Path) -> None:
    """Then a calibration may have them; a computed one, a long one and too many are faults."""
    cuts = (AcceptanceThreshold(0, ANY_BUCKET, 0.5), AcceptanceThreshold(0, "law", 0.1))
    (tmp_path / "auto.json").write_bytes(write_calibration_file(replace(calibration_file(0.5), cuts=cuts)))
    cascade = {"models": ["small", "big"], "calibration": str(tmp_path / "auto.json"), "buckets": ["law"]}
    path = tmp_path / "hearth.yaml"
    path.write_text(json.dumps({"model_list": [{"model_name": "auto", "cascade": cascade}]}))
    entry = check_file(path, {}).models[0].cascade
    assert entry is not None
    assert entry.buckets == ("law",)
    for buckets, reported in (
        (["code"], "`code` is a bucket that the gateway computes"),
        (["No Spaces"], "must be 1 to 32 of a-z"),
        ([f"b{number}" for number in range(33)], "must be 32 at most"),
    ):
        wrong = {"models": ["small", "big"], "buckets": buckets}
        path.write_text(json.dumps({"model_list": [{"model_name": "auto", "cascade": wrong}]}))
        with pytest.raises(InvalidDocument) as rejected:
            check_file(path, {})
        assert reported in str(rejected.value.errors[0])


@pytest.mark.parametrize(
    ("stated", "share"), [("largest", 0.0), ("smallest", 1.0), ("local", 1.0), (0.25, 0.25), (1, 1.0), (None, None)]
)
def test_an_uncalibrated_cascade_says_where_requests_begin(tmp_path: Path, stated: object, share: float | None) -> None:
    """At the largest or the smallest, or a share of them at the smallest; left out, nothing is said."""
    cascade = {"models": ["small", "big"]} | ({} if stated is None else {"uncalibrated": stated})
    (tmp_path / "hearth.yaml").write_text(json.dumps({"model_list": [{"model_name": "auto", "cascade": cascade}]}))
    entry = check_file(tmp_path / "hearth.yaml", {}).models[0].cascade
    assert entry is not None
    assert entry.uncalibrated == share


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ({"models": ["small", "big"], "uncalibrated": "medium"}, "must be `largest`, `smallest`, `local`, or a share"),
        ({"models": ["small", "big"], "uncalibrated": 2}, "must be `largest`, `smallest`, `local`, or a share"),
        ({"models": ["small", "big"], "uncalibrated": True}, "must be `largest`, `smallest`, `local`, or a share"),
        ({"models": ["small"], "uncalibrated": "smallest"}, "must name two models or more"),
        ({"uncalibrated": "smallest"}, "is missing"),
    ],
)
def test_another_start_is_a_fault(tmp_path: Path, words: dict[str, object], reported: str) -> None:
    """Neither of the two words, no share, or no cascade."""
    (tmp_path / "hearth.yaml").write_text(json.dumps({"model_list": [{"model_name": "auto", "cascade": words}]}))
    with pytest.raises(InvalidDocument, match=r"model_list\[0\]\.cascade\.") as rejected:
        check_file(tmp_path / "hearth.yaml", {})
    assert reported in str(rejected.value.errors[0])


def test_a_calibrated_cascade_takes_no_other_start(tmp_path: Path) -> None:
    """The calibration decides; saying both would leave one unused."""
    (tmp_path / "auto.json").write_bytes(write_calibration_file(calibration_file(0.5)))
    cascade = {"models": ["small", "big"], "uncalibrated": "smallest", "calibration": str(tmp_path / "auto.json")}
    (tmp_path / "hearth.yaml").write_text(json.dumps({"model_list": [{"model_name": "auto", "cascade": cascade}]}))
    with pytest.raises(InvalidDocument) as rejected:
        check_file(tmp_path / "hearth.yaml", {})
    assert "conflicts with `calibration`" in str(rejected.value.errors[0])
