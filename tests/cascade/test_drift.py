"""Thresholds that follow shadow samples, the drift alarm (seeded draws), and models that never keep an answer."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import pytest

from cascade.calibration_file import (
    ANY_BUCKET,
    AcceptanceThreshold,
    AnswerVerdict,
    BenefitCurve,
    CalibrationEvidence,
    CalibrationFile,
    Comparison,
    QualityGuarantee,
    ReferenceOutcomes,
    SignalStage,
    judge_signal,
)
from cascade.drift import (
    LEARNED_SAMPLES,
    MAX_STEPS,
    MIN_ANSWERS,
    STEP_PER_SAMPLE,
    SUSPECTED_STEPS,
    TRIAL_INTERVAL,
    DriftController,
    FreezeDetector,
    _raised,
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
    reference=(ReferenceOutcomes(0, Comparison.SCORES, 1_000, 400, 8, 4),),
)
ALLOWED = (8 - 4) / 400 + 0.05
"""Mean outcome allowed: the reference's, and by how much the guarantee lets it rise."""
WORSE, ALIKE, BETTER = 1, 0, -1


def test_what_is_allowed_is_the_guarantee_among_the_kept() -> None:
    """2 points of all are 5 of the 40 % that are kept."""
    assert DriftController(FILE).allowed_rate == pytest.approx(0.05)


def test_agreement_leaves_the_file_as_it_is() -> None:
    """Calibrated thresholds are the floor."""
    staying = DriftController(FILE)
    for _ in range(100):
        staying.record_sample(0, ALIKE)
    assert staying.calibration == FILE
    assert (staying.shadows, staying.agreement, staying.is_withdrawn) == (100, 1.0, False)


def test_a_worse_answer_makes_its_model_stricter() -> None:
    """And no other; what was just good enough escalates now."""
    staying = DriftController(FILE)
    staying.record_sample(0, WORSE)
    assert judge_signal(FILE, 0, "chat", 0.5) is AnswerVerdict.KEEP
    assert judge_signal(staying.calibration, 0, "chat", 0.5) is AnswerVerdict.ESCALATE
    assert staying.calibration.threshold_for(1, "chat") == FILE.threshold_for(1, "chat")
    assert staying.raised_steps == pytest.approx((STEP_PER_SAMPLE * (1.0 - ALLOWED), 0.0))


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
        staying.record_sample(0, WORSE)
        cut = staying.calibration.threshold_for(0, "chat")
        assert cut is not None
        shares.append(cut.edge_share)
        assert judge_signal(staying.calibration, 0, "chat", 1.0, draw=0.5) is AnswerVerdict.KEEP
        assert judge_signal(staying.calibration, 0, "chat", 1.0, draw=cut.edge_share) is AnswerVerdict.ESCALATE
        assert judge_signal(staying.calibration, 0, "chat", 0.99, draw=0.0) is AnswerVerdict.ESCALATE
    assert 1.0 > shares[0] > shares[1] > shares[2] > 0.0
    for _ in range(100):
        staying.record_sample(0, ALIKE)
    assert staying.calibration == SUREST


def test_answers_that_are_not_kept_ease_a_model_that_keeps_none() -> None:
    """By no more than good shadows would; an ended promise stays ended."""
    staying, shadowed = DriftController(FILE), DriftController(FILE)
    staying.record_sample(0, WORSE)
    shadowed.record_sample(0, WORSE)
    for _ in range(5):
        staying.lower_thresholds(0)
        shadowed.record_sample(0, ALIKE)
    assert 0.0 < shadowed.raised_steps[0] < staying.raised_steps[0] < STEP_PER_SAMPLE
    for _ in range(30):
        staying.lower_thresholds(0)
    assert staying.calibration == FILE
    for _ in range(200):
        staying.record_sample(0, WORSE)
    staying.lower_thresholds(0)
    assert not staying.calibration.is_promised


def test_chance_is_forgiven() -> None:
    """Good shadows bring it back down."""
    staying = DriftController(FILE)
    staying.record_sample(1, WORSE)
    for _ in range(30):
        staying.record_sample(1, ALIKE)
    assert staying.calibration == FILE


def test_drift_is_given_up() -> None:
    """When every other kept answer is worse nothing is kept any more, and later shadows change nothing."""
    random, staying = Random(1), DriftController(FILE)
    for _ in range(200):
        staying.record_sample(0, random.choice((WORSE, ALIKE)))
    assert staying.is_withdrawn
    assert not staying.calibration.is_promised
    shadows = staying.shadows
    staying.record_sample(0, ALIKE)
    assert staying.shadows == shadows < 200


def outcomes(worse: float, better: float, seed: int, count: int) -> list[int]:
    """Drawn outcomes with these shares."""
    random = Random(seed)
    draws = [random.random() for _ in range(count)]
    return [WORSE if draw < worse else BETTER if draw < worse + better else ALIKE for draw in draws]


def fed(staying: DriftController, seen: list[int]) -> DriftController:
    """The controller after these outcomes."""
    for outcome in seen:
        staying.record_sample(0, outcome)
    return staying


def test_traffic_as_calibrated_stops_nothing() -> None:
    """1,000 samples as in the reference, 60 times: at most 5 % of them stopped (seeded)."""
    runs = [fed(DriftController(FILE), outcomes(0.02, 0.01, seed, 1_000)) for seed in range(60)]
    assert sum(staying.is_withdrawn for staying in runs) <= 3


def test_harder_traffic_with_as_many_gains_stops_nothing() -> None:
    """Losses tripled and gains with them: the net loss is the calibrated one."""
    runs = [fed(DriftController(FILE), outcomes(0.06, 0.05, seed, 400)) for seed in range(20)]
    assert sum(staying.is_withdrawn for staying in runs) <= 1


def test_a_clear_break_is_withdrawn_within_a_window() -> None:
    """Four times the allowed net loss."""
    runs = [fed(DriftController(FILE), outcomes(0.2, 0.0, seed, 200)) for seed in range(20)]
    assert all(staying.is_withdrawn for staying in runs)


def test_a_suspicion_raises_thresholds_and_ends() -> None:
    """By its own steps beside those of the samples; good samples end it."""
    staying = DriftController(FILE)
    samples = 0
    while not staying.is_suspected:
        staying.record_sample(0, WORSE if samples % 9 == 0 else ALIKE)
        samples += 1
    assert not staying.is_withdrawn
    assert staying.steps_of(0) == pytest.approx(staying.raised_steps[0] + SUSPECTED_STEPS)
    fed(staying, [ALIKE] * 400)
    assert staying.calibration == FILE


def test_a_reference_is_learned_where_the_file_has_none() -> None:
    """Nothing moves meanwhile; the errors of the comparison are then part of the reference."""
    staying = DriftController(FILE, comparison=Comparison.TEXT)
    fed(staying, outcomes(0.5, 0.0, 1, LEARNED_SAMPLES - 1))
    assert (staying.samples_to_learn, staying.windows, staying.calibration) == (1, (), FILE)
    fed(staying, outcomes(0.5, 0.0, 2, 1_001))
    assert staying.samples_to_learn == 0
    assert not staying.is_withdrawn
    fed(staying, outcomes(0.95, 0.0, 3, 200))
    assert staying.is_withdrawn


SUREST_FILE = replace(
    FILE,
    cuts=(AcceptanceThreshold(0, ANY_BUCKET, 0.5, above=tuple(0.5 + part / 20 for part in range(1, 11))),),
    promise=QualityGuarantee(0.06, 0.95),
    evidence=CalibrationEvidence(1_000, "sha256:0", loss=0.048, kept=0.8),
    reference=(ReferenceOutcomes(0, Comparison.SCORES, 1_000, 800, 60, 12, 480, 2, 0),),
)


def test_losses_among_the_surest_are_suspected_first() -> None:
    """Where hardly any is expected: few of them are enough, and as many others are not."""

    def after(*, is_surest: bool) -> DriftController:
        staying = DriftController(SUREST_FILE)
        for number in range(150):
            is_loss = number % 15 == 0
            staying.record_sample(0, WORSE if is_loss else ALIKE, is_surest=is_surest or not is_loss)
        return staying

    assert SUREST_FILE.is_surest(0, "chat", 0.75)
    assert not SUREST_FILE.is_surest(0, "chat", 0.7)
    assert not SUREST_FILE.is_surest(0, "chat", None)
    assert after(is_surest=True).is_suspected
    assert not after(is_surest=False).is_suspected


def test_a_break_of_texts_that_differ_anyway_is_stated_as_smaller() -> None:
    """An answer that differs without a loss cannot differ once more: where half of them do, it shows half as much."""

    def learned(share: float) -> DriftController:
        staying = DriftController(FILE, comparison=Comparison.TEXT)
        return fed(staying, outcomes(share, 0.0, 7, LEARNED_SAMPLES))

    assert learned(0.5).noticed < 0.2
    assert learned(0.02).noticed > 0.4


def test_a_declared_share_is_a_reference() -> None:
    """Texts that differ as often as declared stop nothing; when all differ the guarantee ends."""

    def declared() -> DriftController:
        return DriftController(FILE, comparison=Comparison.TEXT, declared_difference=0.3)

    assert not fed(declared(), outcomes(0.3, 0.0, 4, 1_000)).is_withdrawn
    assert fed(declared(), [WORSE] * 150).is_withdrawn


TENTHS_FILE = replace(
    FILE, cuts=(AcceptanceThreshold(0, ANY_BUCKET, 0.5, above=(0.6, 0.7, 0.8, 0.9, 0.95, 0.96, 0.97, 0.98, 1.0, 1.0)),)
)


def test_thresholds_rise_along_the_accepted_answers() -> None:
    """A step rejects a tenth of them, of answers with one signal a share; the last is left until the ceiling."""
    steps = DriftController(TENTHS_FILE)
    for _ in range(5):
        steps.record_sample(0, WORSE)
    cut = steps.calibration.cuts[0]
    assert 0.5 < cut.threshold < 0.6
    assert _raised(TENTHS_FILE.cuts[0], 8.5, 1.0).threshold == pytest.approx(0.99)
    raised = _raised(TENTHS_FILE.cuts[0], 9.25, 1.0)
    assert raised.edge == 1.0
    assert raised.edge_share == pytest.approx(0.75)
    assert raised.accepts(1.0, 0.7)
    assert not raised.accepts(1.0, 0.8)
    alike = replace(TENTHS_FILE.cuts[0], threshold=1.0, above=(1.0,) * 10)
    assert _raised(alike, 2.5, 1.0).edge_share == pytest.approx(0.75)
    assert _raised(TENTHS_FILE.cuts[0], 3.0, 1.0).threshold == pytest.approx(0.8)
    assert 0.0 < _raised(TENTHS_FILE.cuts[0], MAX_STEPS, 1.0).edge_share < 1e-6


def test_a_model_that_keeps_nothing_freezes() -> None:
    """With the last of so many answers in a row, and not before."""
    keeping = FreezeDetector(0.4)
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


def test_raised_thresholds_are_expected_to_keep_less() -> None:
    """The same row of answers shows less: with half of them left it must be about twice as long."""
    plain, raised = FreezeDetector(0.1), FreezeDetector(0.1)
    rows = {False: 0, True: 0}
    for is_raised, keeping in ((False, plain), (True, raised)):
        while not keeping.is_frozen:
            keeping.record(is_kept=False, raised_steps=MAX_STEPS / 2 if is_raised else 0.0)
            rows[is_raised] += 1
    assert 1.9 < rows[True] / rows[False] < 2.2


def test_where_nothing_was_kept_nothing_is_expected() -> None:
    """A calibration that keeps none is contradicted by no row."""
    keeping = FreezeDetector(0.0)
    for _ in range(5_000):
        assert not keeping.record(is_kept=False)
