"""Labelled examples: one signal chosen, prices put on answers, and their fingerprint."""

from __future__ import annotations

from math import isnan, nan

import pytest

from cascade.calibration.examples import AnswerPricing, LabelledExamples, LabelledRow, examples_of, fingerprint
from cascade.calibration_file import ANY_BUCKET, SignalStage
from cascade.models import EASE, Price
from tests.cascade.calibration.labels import example, three_models

MODELS = ("small", "large")


def labelled(*rows: LabelledRow, signals: tuple[str, ...] = ("margin",)) -> LabelledExamples:
    return LabelledExamples(MODELS, signals, rows)


def test_the_default_signal_is_the_margin() -> None:
    """Else what comes next in what did well, else the prompt's own: never one that the gateway cannot compute."""
    assert labelled(signals=("mean", "margin")).default_signal() == "margin"
    assert labelled(signals=("colour", "mean")).default_signal() == "mean"
    assert labelled(signals=("colour", "shape")).default_signal() == EASE
    assert labelled(signals=()).default_signal() == EASE
    assert labelled(signals=()).default_stage(EASE) is SignalStage.PROMPT
    assert labelled().default_stage("margin") is SignalStage.WINDOW


def test_entropy_is_turned_round() -> None:
    """Higher must be surer; a file that has it negated already is left as it is."""
    for given, surer in (((0.2, 2.0), 0), ((-2.0, -0.2), 1)):
        rows = [LabelledRow((1.0, 1.0), {"entropy": (value, nan)}) for value in given]
        one, other = (
            example.signals[0]
            for example in examples_of(labelled(*rows, signals=("entropy",)), "entropy", AnswerPricing())
        )
        assert (one > other) is (surer == 0)


def test_prices_by_tokens() -> None:
    """An answer given up in the window costs prompt and window; given up whole, all of it; by the prompt, nothing."""
    row = LabelledRow((1.0, 1.0), {"margin": (0.5, nan)}, input_tokens=100, output_tokens=(200.0, 300.0))
    prices = {"small": Price(1.0, None, 2.0), "large": Price(10.0, None, 20.0)}
    for stage, wasted in ((SignalStage.WINDOW, 120.0), (SignalStage.WHOLE, 500.0), (SignalStage.PROMPT, 0.0)):
        (example,) = examples_of(labelled(row), "margin", AnswerPricing(prices, stage, window_tokens=10))
        assert example.costs == (500.0, 7_000.0)
        assert example.wasted == (wasted,)


def test_costs_reported_by_the_file_go_first() -> None:
    """Without either, the largest model costs 1 and what it is not asked for is what is saved."""
    reported = LabelledRow((1.0, 1.0), {"margin": (0.5, nan)}, costs=(0.2, nan))
    (example,) = examples_of(labelled(reported), "margin", AnswerPricing())
    assert example.costs == (0.2, 1.0)
    assert example.wasted == (0.2,)


def test_buckets_are_distinguished_from_prompts() -> None:
    """Unless the file says them; without either there is only one."""
    rows = (
        LabelledRow((1.0, 1.0), prompt="Translate to French: hello"),
        LabelledRow((1.0, 1.0), prompt="Translate to French: hello", bucket="law"),
        LabelledRow((1.0, 1.0)),
    )
    examples = examples_of(labelled(*rows, signals=()), EASE, AnswerPricing())
    assert [example.bucket for example in examples] == ["changing", "law", ANY_BUCKET]
    assert isnan(examples[2].signals[0])
    assert not isnan(examples[0].signals[0])


def test_a_signal_that_is_not_there_is_an_error() -> None:
    """By its name."""
    with pytest.raises(KeyError, match="colour"):
        examples_of(labelled(), "colour", AnswerPricing())


def test_the_same_examples_have_the_same_fingerprint() -> None:
    """And any difference, order included, another."""
    one, two = example(0.1), example(0.2)
    assert fingerprint([one, two]) == fingerprint([example(0.1), example(0.2)])
    assert len({fingerprint(these) for these in ([one, two], [two, one], [one], [])}) == 4
    assert fingerprint([one]).startswith("sha256:")


def test_the_top_is_the_last_model() -> None:
    """Counted from the cheapest."""
    assert three_models(1)[0].largest == 2
