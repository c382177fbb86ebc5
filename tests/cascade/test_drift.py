"""Thresholds that follow shadow samples, the drift alarm (seeded draws), and models that never keep an answer."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade.calibration_file import (
    ANY_BUCKET,
    AcceptanceThreshold,
    AnswerVerdict,
    BenefitCurve,
    CalibrationEvidence,
    CalibrationFile,
    QualityGuarantee,
    SignalStage,
    judge_signal,
)
from cascade.drift import (
    MAX_STEPS,
    MIN_ANSWERS,
    STEP_PER_SAMPLE,
    TRIAL_INTERVAL,
    DriftAlarm,
    DriftController,
    FreezeDetector,
)

FILE = CalibrationFile(
    *(
        ("small", "middle", "large"),
        "margin",
        SignalStage.WINDOW,
        QualityGuarantee(0.02, 0.95),
        CalibrationEvidence(1_000, "sha256:0", kept=0.4),
    ),
    cuts=(
        AcceptanceThreshold(0, ANY_BUCKET, 0.5, grey=0.1),
        AcceptanceThreshold(1, ANY_BUCKET, 0.3, map=BenefitCurve((0.0, 1.0), (0.5, 0.0))),
        AcceptanceThreshold(1, "x", inf),
    ),
    is_promised=True,
)


def test_what_is_allowed_is_the_guarantee_among_the_kept() -> None:
    """2 points of all are 5 of the 40 % that are kept."""
    assert DriftController(FILE).allowed_rate == pytest.approx(0.05)
    assert DriftController(FILE, harmless=0.2).allowed_rate == pytest.approx(0.25)


def test_agreement_leaves_the_file_as_it_is() -> None:
    """Calibrated thresholds are the floor."""
    staying = DriftController(FILE)
    for _ in range(100):
        staying.record_sample(0, 1.0)
    assert staying.calibration == FILE
    assert (staying.shadows, staying.agreement, staying.is_withdrawn) == (100, 1.0, False)


def test_a_worse_answer_makes_its_model_stricter() -> None:
    """And no other; what was just good enough escalates now."""
    staying = DriftController(FILE)
    staying.record_sample(0, 0.0)
    assert judge_signal(FILE, 0, "chat", 0.5) is AnswerVerdict.KEEP
    assert judge_signal(staying.calibration, 0, "chat", 0.5) is AnswerVerdict.ESCALATE
    assert staying.calibration.threshold_for(1, "chat") == FILE.threshold_for(1, "chat")
    assert staying.raised_steps == (STEP_PER_SAMPLE * 0.95, 0.0)


SUREST = replace(
    FILE,
    cuts=(
        AcceptanceThreshold(0, ANY_BUCKET, 1.0, map=BenefitCurve((0.0, 1.0), (0.5, 0.0))),
        AcceptanceThreshold(1, ANY_BUCKET, 0.3),
    ),
)
"""Only answers at the greatest margin there is are kept."""


def test_a_threshold_does_not_rise_past_the_range_of_its_signal() -> None:
    """A share of the answers at its greatest value is kept, fewer with each worse shadow, so that shadows go on."""
    staying = DriftController(SUREST)
    shares = []
    for _ in range(3):
        staying.record_sample(0, 0.0)
        cut = staying.calibration.threshold_for(0, "chat")
        assert cut is not None
        shares.append(cut.edge_share)
        assert judge_signal(staying.calibration, 0, "chat", 1.0, draw=0.5) is AnswerVerdict.KEEP
        assert judge_signal(staying.calibration, 0, "chat", 1.0, draw=cut.edge_share) is AnswerVerdict.ESCALATE
        assert judge_signal(staying.calibration, 0, "chat", 0.99, draw=0.0) is AnswerVerdict.ESCALATE
    assert 1.0 > shares[0] > shares[1] > shares[2] > 0.0
    for _ in range(100):
        staying.record_sample(0, 1.0)
    assert staying.calibration == SUREST


def test_answers_that_are_not_kept_ease_a_model_that_keeps_none() -> None:
    """By as much as good shadows would; an ended promise stays ended."""
    staying, shadowed = DriftController(FILE), DriftController(FILE)
    staying.record_sample(0, 0.0)
    shadowed.record_sample(0, 0.0)
    for _ in range(5):
        staying.lower_thresholds(0)
        shadowed.record_sample(0, 1.0)
    assert 0.0 < staying.raised_steps[0] == shadowed.raised_steps[0] < STEP_PER_SAMPLE
    for _ in range(30):
        staying.lower_thresholds(0)
    assert staying.calibration == FILE
    for _ in range(200):
        staying.record_sample(0, 0.0)
    staying.lower_thresholds(0)
    assert not staying.calibration.is_promised


def test_chance_is_forgiven() -> None:
    """Good shadows bring it back down."""
    staying = DriftController(FILE)
    staying.record_sample(1, 0.0)
    for _ in range(30):
        staying.record_sample(1, 1.0)
    assert staying.calibration == FILE


def test_drift_is_given_up() -> None:
    """When every other kept answer is worse nothing is kept any more, and later shadows change nothing."""
    random, staying = Random(1), DriftController(FILE)
    for _ in range(200):
        staying.record_sample(0, float(random.random() < 0.5))
    assert staying.is_withdrawn
    assert not staying.calibration.is_promised
    shadows = staying.shadows
    staying.record_sample(0, 1.0)
    assert staying.shadows == shadows < 200


def test_traffic_as_calibrated_rings_no_alarm() -> None:
    """At the rate that is allowed, over 3,000 shadows (seeded)."""
    random, staying = Random(2), DriftController(FILE)
    for _ in range(3_000):
        staying.record_sample(0, float(random.random() >= 0.04))
    assert not staying.is_withdrawn
    assert staying.alarm_level < 1.0


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(0, 1)), max_size=200))
def test_thresholds_stay_within_bounds(shadows: list[tuple[int, float]]) -> None:
    """Whatever shadows say: never looser than calibrated, never above the ceiling, infinite ones infinite."""
    staying = DriftController(FILE)
    for rung, agreed in shadows:
        staying.record_sample(rung, agreed)
    assert all(0.0 <= steps <= MAX_STEPS for steps in staying.raised_steps)
    for cut, calibrated in zip(staying.calibration.cuts, FILE.cuts, strict=True):
        assert cut.threshold >= calibrated.threshold
        assert cut.threshold <= calibrated.threshold + MAX_STEPS * 0.1 + 1e-9


def received(rate: float, allowed: float, *, most: int, seed: int, patience: float = 2_000.0) -> int | None:
    """After how many samples it rings."""
    random, alarm = Random(seed), DriftAlarm(allowed, patience)
    for at in range(most):
        if alarm.observe(float(random.random() < rate)):
            return at + 1
    return None


@pytest.mark.parametrize("allowed", [0.02, 0.1, 0.4])
def test_false_alarms_are_as_rare_as_stated(allowed: float) -> None:
    """At the very limit the time to one is `patience` samples on average or more."""
    times = [received(allowed, allowed, most=6_000, seed=seed) or 6_000 for seed in range(20)]
    assert sum(times) / len(times) >= 2_000


@pytest.mark.parametrize(("rate", "within"), [(0.3, 120), (0.15, 600)])
def test_a_rise_is_detected(rate: float, within: int) -> None:
    """Threefold soon, by half after a while; half of all runs by then."""
    times = sorted(received(rate, 0.1, most=5_000, seed=seed) or 5_000 for seed in range(15))
    assert times[7] <= within


def test_a_rise_after_long_quiet_is_detected_too() -> None:
    """Years of good answers buy no patience."""
    random, alarm = Random(3), DriftAlarm(0.1)
    for _ in range(20_000):
        alarm.observe(float(random.random() < 0.03))
    assert not alarm.is_raised
    assert any(alarm.observe(float(random.random() < 0.5)) for _ in range(100))


def test_it_stays_raised() -> None:
    """Good samples do not take it back; the strain stays a number."""
    alarm = DriftAlarm(0.05)
    for _ in range(2_000):
        alarm.observe(1.0)
    for _ in range(50):
        assert alarm.observe(0.0)
    assert alarm.level < 1e12


@pytest.mark.parametrize("allowed", [-1.0, 0.0, 1.0, 5.0])
def test_ends_are_no_fault(allowed: float) -> None:
    """A guarantee of nothing or of everything divides by nothing."""
    alarm = DriftAlarm(allowed)
    assert not alarm.observe(0.0)
    assert alarm.samples == 1


def test_a_model_that_keeps_nothing_freezes() -> None:
    """With the last of so many answers in a row, and not before."""
    keeping = FreezeDetector(0.4)
    assert keeping.freeze_after == MIN_ANSWERS
    assert not any(keeping.record(is_kept=False) for _ in range(MIN_ANSWERS - 1))
    assert keeping.record(is_kept=False)
    assert keeping.is_frozen
    assert not keeping.record(is_kept=False)


def test_a_frozen_model_is_tried_now_and_then() -> None:
    """And asked for every request again with the first answer that is kept."""
    keeping = FreezeDetector(0.4)
    assert all(keeping.should_ask() for _ in range(1_000))
    for _ in range(MIN_ANSWERS):
        keeping.record(is_kept=False)
    assert sum(keeping.should_ask() for _ in range(10 * TRIAL_INTERVAL)) == 10
    assert keeping.record(is_kept=True)
    assert keeping.should_ask()


def test_one_kept_answer_begins_the_count_again() -> None:
    """Only an unbroken row shows anything."""
    keeping = FreezeDetector(0.4)
    for number in range(20 * MIN_ANSWERS):
        keeping.record(is_kept=number % MIN_ANSWERS == 0)
    assert not keeping.is_frozen


@pytest.mark.parametrize("kept", [0.02, 0.1, 0.9])
def test_a_model_that_keeps_what_was_calibrated_does_not_freeze(kept: float) -> None:
    """The fewer it keeps, the longer a row has to be."""
    random, keeping = Random(5), FreezeDetector(kept)
    for _ in range(50_000):
        keeping.record(is_kept=random.random() < kept)
        assert not keeping.is_frozen


def test_where_nothing_was_kept_nothing_is_expected() -> None:
    """A calibration that keeps none is contradicted by no row."""
    keeping = FreezeDetector(0.0)
    for _ in range(5_000):
        assert not keeping.record(is_kept=False)
