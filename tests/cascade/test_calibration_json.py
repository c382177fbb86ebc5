"""Calibration files as JSON: what is written is read, and every error is reported at once."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf

import pytest

from cascade.calibration_file import (
    ANY_BUCKET,
    AcceptanceThreshold,
    BenefitCurve,
    CalibrationEvidence,
    CalibrationFile,
    Comparison,
    QualityGuarantee,
    ReferenceOutcomes,
    SignalStage,
)
from cascade.calibration_json import InvalidCalibrationFile, read_calibration_file, write_calibration_file
from cascade.signals.combination import COMBINED, SignalCombination

FILE = CalibrationFile(
    models=("small", "middle", "large"),
    signal="margin",
    stage=SignalStage.WINDOW,
    promise=QualityGuarantee(0.01, 0.95),
    evidence=CalibrationEvidence(1000, "sha256:00", loss=0.002, kept=0.4, cost=0.6, cost_always_top=1.0),
    cuts=(
        AcceptanceThreshold(
            *(0, ANY_BUCKET, 0.75, 0.05, BenefitCurve((0.1, 0.9), (0.5, -0.1))),
            above=tuple(0.75 + part / 100 for part in range(1, 11)),
        ),
        AcceptanceThreshold(0, "code", inf, edge=0.9, edge_share=0.25),
        AcceptanceThreshold(1, ANY_BUCKET, -1.5),
    ),
    is_promised=True,
    reference=(
        ReferenceOutcomes(0, Comparison.SCORES, 1_000, 400, 3.5, 2.0),
        ReferenceOutcomes(0, Comparison.TEXT, 1_000, 300, 30, 0, 180, 4.0),
    ),
)


def changed(**words: object) -> bytes:
    return json.dumps({**json.loads(write_calibration_file(FILE)), **words}).encode()


def faults_of(raw: bytes) -> tuple[str, ...]:
    with pytest.raises(InvalidCalibrationFile) as rejected:
        read_calibration_file(raw)
    return rejected.value.faults


def test_what_is_written_is_read() -> None:
    """Nothing is lost on the way, an infinite threshold included."""
    assert read_calibration_file(write_calibration_file(FILE)) == FILE


def test_surest_outcomes_are_a_part() -> None:
    """Written where there are any, since an older gateway rejects the keys; never more than the whole."""
    first, second = json.loads(write_calibration_file(FILE))["reference"]
    assert "surest" not in first
    assert (second["surest"], second["surest_worse"]) == (180, 4.0)
    for wrong in ({"surest": 301}, {"surest": 3}, {"surest_worse": 31.0}, {"surest_better": -1.0}):
        (fault,) = faults_of(changed(reference=[first, second | wrong]))
        assert fault.startswith("reference[1].surest: must count some"), wrong


def test_combinations_are_written_and_checked() -> None:
    """One for each model but the largest where the signal is combined, of inputs that the gateway computes."""
    each = SignalCombination(("margin", "length"), (2.0, -0.5), (0.7, 3.0), 0.1)
    file = replace(FILE, signal=COMBINED, combinations=(each, each))
    assert read_calibration_file(write_calibration_file(file)) == file
    assert "combinations" not in json.loads(write_calibration_file(FILE))
    (missing,) = faults_of(changed(signal=COMBINED))
    assert missing == "combinations: must be one for each rung below the top where the signal is `combined`"
    stated = json.loads(write_calibration_file(file))["combinations"]
    wrong = [{**stated[0], "inputs": ["margin", "mood"]}, {**stated[0], "weights": [1.0]}]
    faults = faults_of(changed(signal=COMBINED, combinations=wrong))
    assert "combinations[0].inputs: must be of margin" in faults[0]
    assert faults[1] == "combinations[1]: must have as many weights and means as inputs"


def test_a_reference_that_cannot_be_is_a_fault() -> None:
    """More outcomes than samples, an unknown comparison, one twice, a model too many; tenths that fall."""
    entry = {"rung": 0, "comparison": "text", "judged": 10, "samples": 5, "worse": 1, "better": 0}
    cut = {"rung": 0, "bucket": "*", "threshold": 0.5}
    for changes, reported in (
        ({"reference": [entry | {"worse": 6}]}, "reference[0]: must have worse + better <= samples"),
        ({"reference": [entry | {"comparison": "taste"}]}, "reference[0].comparison: must be one of scores, text"),
        ({"reference": [entry, entry]}, "reference[1]: rung 0 and comparison `text` stand twice"),
        ({"reference": [entry | {"rung": 2}]}, "reference[0].rung: must be below 2"),
        ({"cuts": [cut | {"above": [0.6, 0.5]}]}, "cuts[0].above: must have 10 numbers"),
    ):
        assert reported in "\n".join(faults_of(changed(**changes)))


def test_every_fault_is_named_with_its_path() -> None:
    """One reading tells all that is wrong."""
    cuts = [
        {"rung": 2, "bucket": "x", "threshold": "high"},
        {"rung": 0, "bucket": "", "threshold": 1, "map": {"signals": [2, 1], "benefits": [0]}},
        {"rung": 0, "bucket": "y", "threshhold": 1, "edge": "x", "edge_share": 2},
    ]
    reported = "\n".join(faults_of(changed(version=9, stage="soon", promise={"max_loss": 2}, cuts=cuts, colour=1)))
    for path in (
        *("version:", "stage:", "promise.max_loss:", "promise.confidence:", "colour:", "cuts[0].rung:"),
        *("cuts[0].threshold:", "cuts[1].bucket:", "cuts[1].map.signals:", "cuts[1].map:", "cuts[2].threshhold:"),
        *("cuts[2].threshold:", "cuts[2].edge:", "cuts[2].edge_share:"),
    ):
        assert path in reported


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff", b"null", b'{"cuts": NaN}', b"[" * 100_000])
def test_what_is_no_calibration_file_is_rejected(raw: bytes) -> None:
    """Whatever the bytes, the error is ours."""
    assert faults_of(raw)


def test_models_that_stand_twice_are_faults() -> None:
    """Which of two cuts would hold is nobody's guess."""
    twice = [{"rung": 0, "bucket": "*", "threshold": 1}] * 2
    assert any("twice" in fault for fault in faults_of(changed(cuts=twice)))
    assert any("models" in fault for fault in faults_of(changed(models=["a", "a"])))


def test_a_map_that_rises_is_a_fault() -> None:
    """A surer answer cannot be more in need of help; such a file was not written by us."""
    rising = [{"rung": 0, "bucket": "*", "threshold": 1, "map": {"signals": [0, 1], "benefits": [0, 1]}}]
    assert any("benefits" in fault for fault in faults_of(changed(cuts=rising)))


def test_a_guarantee_that_its_evidence_contradicts_is_a_fault() -> None:
    """Somebody has set it by hand: more examples are needed, more is lost than may be, more is kept than there is."""
    evidence = json.loads(write_calibration_file(FILE))["evidence"]
    assert any("would do" in fault for fault in faults_of(changed(evidence=evidence | {"needs": 3400})))
    assert any("evidence.loss" in fault for fault in faults_of(changed(evidence=evidence | {"loss": 0.5})))
    assert any("evidence.kept" in fault for fault in faults_of(changed(evidence=evidence | {"kept": 1.5})))
    unpromised = read_calibration_file(changed(is_promised=False, evidence=evidence | {"needs": 3400}))
    assert unpromised.evidence.needs == 3400


def test_a_guarantee_on_too_few_examples_is_a_fault() -> None:
    """Without a single loss among them, one point at 95 % takes 299."""
    evidence = json.loads(write_calibration_file(FILE))["evidence"]
    assert read_calibration_file(changed(evidence=evidence | {"examples": 299})).is_promised
    for few in (0, 1, 298):
        assert any("fewer than 299" in fault for fault in faults_of(changed(evidence=evidence | {"examples": few})))
    assert not read_calibration_file(changed(is_promised=False, evidence=evidence | {"examples": 1})).is_promised


@pytest.mark.parametrize("number", [10**400, -(10**400), 1e308, -1e308])
def test_a_number_that_is_none_of_ours_is_a_fault(number: float) -> None:
    """Whole numbers of JSON have no end."""
    cut = {"rung": 0, "bucket": "*", "threshold": number}
    assert any("cuts[0].threshold" in fault for fault in faults_of(changed(cuts=[cut])))


@pytest.mark.parametrize("promise", [(1e-320, 0.5), (0.01, 1 - 1e-16), (0.01, 1e-9)])
def test_a_guarantee_beyond_all_examples_is_a_fault(promise: tuple[float, float]) -> None:
    """So small a share that nothing could show it."""
    reported = dict(zip(("max_loss", "confidence"), promise, strict=True))
    assert any("away from both" in fault for fault in faults_of(changed(promise=reported)))


def test_a_request_need_not_look_through_a_flood_of_cuts() -> None:
    """Nobody has so many kinds of tasks."""
    cuts = [{"rung": 0, "bucket": str(number), "threshold": 1} for number in range(5_000)]
    assert any("1024 at most" in fault for fault in faults_of(changed(cuts=cuts)))
