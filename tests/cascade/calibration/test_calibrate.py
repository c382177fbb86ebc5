"""Calibration files from labelled examples, and how many examples would do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf, nan
from random import Random

import pytest

from cascade.calibration.calibrate import CalibrationTarget, calibrate, examples_needed
from cascade.calibration.replay import replay
from cascade.calibration.thresholds import by_rank, cost_of_largest, evaluate_rules
from cascade.calibration_file import ANY_BUCKET, Comparison, QualityGuarantee, SignalStage
from cascade.calibration_json import read_calibration_file, write_calibration_file
from tests.cascade.calibration.labels import example, informative_examples, three_models

SUBJECT = CalibrationTarget(("small", "large"), "margin", SignalStage.WINDOW)
THREE = CalibrationTarget(("small", "middle", "large"), "margin", SignalStage.WINDOW)
PROMISE = QualityGuarantee(0.03, 0.95)


@pytest.mark.parametrize(
    ("drawn", "subject"),
    [
        (informative_examples(1_000), SUBJECT),
        ([*informative_examples(2_500, bucket="a"), *informative_examples(2_500, bucket="b", shift=0.5)], SUBJECT),
        (three_models(800), THREE),
        (three_models(3_000), THREE),
    ],
    ids=["one bucket", "two buckets", "three rungs by rank", "three rungs by worth"],
)
def test_the_file_does_what_its_evidence_says(drawn: list[object], subject: CalibrationTarget) -> None:
    """Replayed by production's verdicts it saves money, keeps the guarantee, and survives being written."""
    examples = [one for one in drawn if not isinstance(one, str)]
    found = calibrate(examples, subject, PROMISE)  # type: ignore[arg-type]
    played = replay(found.file, examples)  # type: ignore[arg-type]
    assert found.file.is_promised
    assert played.saved > 0.2
    assert played.loss <= PROMISE.max_loss
    assert played.loss == pytest.approx(found.file.evidence.loss, abs=0.012)
    assert played.cost == pytest.approx(found.file.evidence.cost, rel=0.05)
    assert read_calibration_file(write_calibration_file(found.file)) == found.file


def test_evidence_is_exact_where_all_were_tested() -> None:
    """What the walk found and what production would do are one thing."""
    drawn = informative_examples(1_000)
    found, evidence = calibrate(drawn, SUBJECT, PROMISE), calibrate(drawn, SUBJECT, PROMISE).file.evidence
    played = replay(found.file, drawn)
    assert (played.loss, played.kept, played.cost) == pytest.approx((evidence.loss, evidence.kept, evidence.cost))
    assert evidence.quality == pytest.approx(played.quality)
    assert evidence.needs is None


def test_what_cannot_be_guaranteed_is_not() -> None:
    """Ten examples promise nothing; the file says how many would do, and nothing is kept under it."""
    found = calibrate(informative_examples(10), SUBJECT, PROMISE)
    assert not found.file.is_promised
    assert found.file.cuts == ()
    assert (found.file.evidence.needs or 0) >= 99
    assert replay(found.file, informative_examples(50)).kept == 0.0


@pytest.mark.parametrize("signal", [nan, 1.0])
def test_a_signal_that_reports_nothing_guarantees_nothing(signal: float) -> None:
    """Missing everywhere, or one value for all, with a small model that is wrong once in five."""
    drawn = [example(signal, small=one.scores[0], cost=0.2) for one in informative_examples(2_000)]
    assert not calibrate(drawn, SUBJECT, PROMISE).file.is_promised


def test_many_answers_of_one_signal_are_kept_by_lot() -> None:
    """Four in five of the kept would be too many: a share of them is not, and the file says which."""
    drawn = [example(float(round(one.signals[0])), small=one.scores[0]) for one in informative_examples(2_000)]
    found = calibrate(drawn, SUBJECT, PROMISE)
    (cut,) = found.file.cuts
    assert cut.edge is not None
    assert cut.edge < cut.threshold
    assert 0.0 < cut.edge_share < 1.0
    played = replay(found.file, drawn)
    assert played.loss == pytest.approx(found.file.evidence.loss, abs=0.003)
    assert played.kept == pytest.approx(found.file.evidence.kept, abs=0.01)


def test_a_small_model_that_is_better_keeps_all() -> None:
    """Benefit negative: then nothing is lost by never escalating."""
    drawn = [example(one.signals[0], large=one.scores[0]) for one in informative_examples(500)]
    assert replay(calibrate(drawn, SUBJECT, PROMISE).file, drawn).kept == 1.0


def test_by_rank_the_threshold_holds_for_any_bucket() -> None:
    """Buckets then share it; those with enough examples have maps of their own."""
    found = calibrate(
        [
            *informative_examples(400, bucket="a"),
            *informative_examples(400, bucket="b"),
            *informative_examples(9, bucket="c"),
        ],
        SUBJECT,
        PROMISE,
    )
    assert {cut.bucket for cut in found.file.cuts} == {"a", "b", ANY_BUCKET}
    assert len({cut.threshold for cut in found.file.cuts}) == 1


def test_by_worth_a_bucket_that_distinguishes_nothing_is_kept() -> None:
    """Its answers escalate where those of a telling bucket are kept."""
    drawn = [
        *informative_examples(3_000, bucket="sharp", shift=3.0),
        *informative_examples(3_000, bucket="dull", shift=0.0, seed=2),
    ]
    thresholds = {
        cut.bucket: cut.threshold for cut in calibrate(drawn, SUBJECT, QualityGuarantee(0.02, 0.95)).file.cuts
    }
    assert thresholds["sharp"] < thresholds["dull"]
    assert thresholds["sharp"] < inf


def test_guarantees_hold_on_the_complete_population() -> None:
    """Of 60 files by 300 examples drawn from 3,000 few break theirs (seeded; the bench draws 200 and more sizes)."""
    population, random, counts = informative_examples(3_000), Random(5), Counter[str]()
    for _ in range(60):
        file = calibrate(random.choices(population, k=300), SUBJECT, PROMISE).file
        counts["made"] += file.is_promised
        counts["broken"] += replay(file, population).loss > PROMISE.max_loss
    assert counts["made"] >= 50
    assert counts["broken"] <= 6


def test_nothing_to_calibrate_on_is_an_error() -> None:
    """No examples, or examples of another cascade."""
    with pytest.raises(ValueError, match="one example or more"):
        calibrate([], SUBJECT, PROMISE)
    with pytest.raises(ValueError, match="a score of every rung"):
        calibrate(informative_examples(10), THREE, PROMISE)


def test_so_many_do() -> None:
    """Where 90 are too few, as many as were named mostly carry the guarantee, and never fewer than were there."""
    reported = [calibrate(informative_examples(90, seed=seed, shift=1.3), SUBJECT, PROMISE).file for seed in range(10)]
    needs = [file.evidence.needs for file in reported if file.evidence.needs]
    assert len(needs) == 10, "90 never show a loss below 3 %"
    assert min(needs) > 90
    middle = sorted(needs)[len(needs) // 2]
    enough = [
        calibrate(informative_examples(middle, seed=seed, shift=1.3), SUBJECT, PROMISE) for seed in range(100, 110)
    ]
    assert sum(found.file.is_promised for found in enough) >= 7


def test_where_every_rule_loses_too_much_no_number_does() -> None:
    """A small model that is wrong where it is surest."""
    drawn = [example(1.0, small=0.0)] * 100 + [example(0.0)] * 100
    steps = evaluate_rules(drawn, by_rank(drawn), PROMISE)
    assert examples_needed(steps, PROMISE, cost_of_largest(drawn), len(drawn)) is None


def test_the_file_holds_what_drift_is_compared_with() -> None:
    """Losses and gains among the accepted, by each comparison that the examples have; tenths of their signals."""
    drawn = [
        replace(one, outcomes={Comparison.TEXT: (float(one.scores[0] < one.scores[1] or at % 4 == 0),)})
        for at, one in enumerate(informative_examples(1_000))
    ]
    file = calibrate(drawn, SUBJECT, QualityGuarantee(0.03, 0.95)).file
    by_scores, by_text = file.reference
    assert (by_scores.comparison, by_text.comparison) == (Comparison.SCORES, Comparison.TEXT)
    assert by_scores.judged == by_text.judged == 1_000
    assert by_scores.samples == round(file.evidence.kept * 1_000)
    assert by_scores.worse - by_scores.better == pytest.approx(file.evidence.loss * 1_000)
    assert 0.2 < by_text.worse / by_text.samples < 0.35
    cut = file.cuts[0]
    accepted = [one.signals[0] for one in drawn if one.signals[0] >= cut.threshold]
    assert cut.above[-1] == max(accepted)
    assert sum(signal <= cut.above[4] for signal in accepted) == pytest.approx(len(accepted) / 2, abs=1)
