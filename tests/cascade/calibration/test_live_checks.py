"""A labelled file is held against what the gateway computes in production."""

from __future__ import annotations

from dataclasses import replace

from cascade.calibration.examples import AnswerPricing, LabelledExamples, LabelledRow, examples_of
from cascade.calibration.live_checks import (
    are_buckets_unproven,
    bucket_faults,
    computed_bucket,
    signal_faults,
    value_faults,
)
from cascade.calibration_file import SignalStage

ROW = LabelledRow((1.0, 1.0), {"margin": (0.5, 0.9)})


def labelled(*rows: LabelledRow, signals: tuple[str, ...] = ("margin",)) -> LabelledExamples:
    """Of two models."""
    return LabelledExamples(("small", "large"), signals, rows)


def test_signals_are_computed_at_their_stage() -> None:
    """A margin from an answer, ease from a prompt that is there."""
    requested = replace(ROW, prompt="Hi")
    assert list(signal_faults(labelled(ROW), "margin", SignalStage.WINDOW)) == []
    assert list(signal_faults(labelled(requested), "ease", SignalStage.PROMPT)) == []
    assert "from the prompt" in next(signal_faults(labelled(ROW), "margin", SignalStage.PROMPT))
    assert "the file has margin" in next(signal_faults(labelled(ROW), "ease", SignalStage.PROMPT))
    assert "by `prompt`" in next(signal_faults(labelled(requested, signals=("ease",)), "ease", SignalStage.PROMPT))


def test_values_lie_where_the_signal_can() -> None:
    """Rounding apart; unknown ones are no values."""
    rows = [replace(ROW, signals={"margin": (value, 0.0)}) for value in (0.0, 1.0000001, float("nan"))]
    read = labelled(*rows)
    assert list(value_faults(examples_of(read, "margin", AnswerPricing()), read, "margin")) == []
    read = labelled(*rows, replace(ROW, signals={"margin": (-0.5, 0.0)}))
    (reported,) = value_faults(examples_of(read, "margin", AnswerPricing()), read, "margin")
    assert "1 of 3 values are not, the first is -0.5" in reported


def test_buckets_are_those_of_the_prompts() -> None:
    """Names of ours that the prompt bears out; those that follow from tools or pictures cannot be checked."""
    good = replace(ROW, bucket="maths", prompt="What is 12 * 12 + 7 * 3?")
    seen = replace(ROW, bucket="vision", prompt="What is this?")
    assert computed_bucket(good) == "maths"
    assert computed_bucket(seen) is None
    assert list(bucket_faults(labelled(good, seen, replace(ROW, prompt="Hi")))) == []
    assert list(bucket_faults(labelled(ROW, ROW))) == []
    assert "`maths` for the first" in next(bucket_faults(labelled(replace(good, bucket="code"))))
    assert "(and of 1 more: art)" in next(
        bucket_faults(labelled(replace(ROW, bucket="law"), replace(ROW, bucket="art")))
    )
    assert "neither a bucket nor a prompt" in next(bucket_faults(labelled(good, ROW)))


def test_buckets_without_prompts_are_unproven() -> None:
    """The operator is told what they must come from."""
    assert are_buckets_unproven(labelled(replace(ROW, bucket="maths")))
    assert not are_buckets_unproven(labelled(replace(ROW, bucket="maths", prompt="1 + 1")))
    assert not are_buckets_unproven(labelled(ROW))
