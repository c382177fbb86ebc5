"""Combinations of signals: fitted on rows of their own, better than each alone where signals add up, and rejected."""

from __future__ import annotations

from math import nan
from random import Random

import pytest

from cascade.calibration.combine import TooFewRows, fit_combinations, split_for_fit, with_combination
from cascade.calibration.examples import AnswerPricing, LabelledExamples, LabelledRow, SignalValues, examples_of
from cascade.calibration.signal_quality import signal_quality
from cascade.signals.combination import COMBINED


def labelled(
    count: int, *, seed: int = 1, signals: tuple[str, ...] = ("margin", "least", "tokens")
) -> LabelledExamples:
    """Two models; margin and least tell half each of who gains, the tokens nothing."""
    random, rows = Random(seed), []
    for at in range(count):
        gains = random.random() < 0.3
        values = {
            "margin": min(1.0, max(0.0, random.gauss(0.6 - 0.15 * gains, 0.15))),
            "least": -abs(random.gauss(2.0 + 2.0 * gains, 1.5)),
            "tokens": float(random.randrange(1, 48)),
        }
        held = SignalValues(signals, tuple((values[name], nan) for name in signals))
        rows.append(LabelledRow((float(not gains), 1.0), held, group=at + 1))
    return LabelledExamples(("small", "large"), signals, rows)


def test_a_combination_beats_each_signal_on_other_rows() -> None:
    """On held-out rows, where both signals carry something; what carries nothing gets next to no weight."""
    (found,) = fit_combinations(labelled(1_500))
    assert found.inputs == ("margin", "least", "length")
    held_out = labelled(4_000, seed=2)
    aurocs = {
        name: signal_quality(examples_of(rows, name, AnswerPricing()), 0).auroc.value
        for rows, name in (
            (held_out, "margin"),
            (held_out, "least"),
            (with_combination(held_out, (found,)), COMBINED),
        )
    }
    assert aurocs[COMBINED] > max(aurocs["margin"], aurocs["least"]) + 0.02
    weights = dict(zip(found.inputs, found.weights, strict=True))
    assert weights["margin"] > 0.0 < weights["least"]
    assert abs(weights["length"]) < 0.3


def test_groups_stay_on_one_side_of_the_fit() -> None:
    """About a third is fitted, and no group is in both parts."""
    rows = labelled(900)
    fitted, tested = split_for_fit(rows)
    assert len(fitted.rows) + len(tested.rows) == 900
    assert 250 <= len(fitted.rows) <= 350
    assert not {row.group for row in fitted.rows} & {row.group for row in tested.rows}


def test_an_unknown_signal_stays_unknown() -> None:
    """The combined one is then nan, as it would be at work."""
    (found,) = fit_combinations(labelled(300))
    rows = labelled(1)
    lost = LabelledRow((1.0, 1.0), SignalValues(("margin", "least", "tokens"), ((nan, nan), (-1.0, nan), (3.0, nan))))
    combined = with_combination(LabelledExamples(rows.models, rows.signals, [lost]), (found,))
    assert str(combined.rows[0].signals[COMBINED][0]) == "nan"


@pytest.mark.parametrize(
    ("rows", "reported"),
    [(labelled(50), "takes 60 rows"), (labelled(100, signals=("margin",)), "takes two signals or more")],
)
def test_too_few_rows_or_signals_are_named(rows: LabelledExamples, reported: str) -> None:
    """Before anything is fitted."""
    with pytest.raises(TooFewRows, match=reported):
        fit_combinations(rows)
