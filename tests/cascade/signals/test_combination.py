"""A combined signal: its range, its parts, and inputs that are not known."""

from __future__ import annotations

from math import isnan, log1p

import pytest

from cascade.signals.combination import COMBINED_INPUTS, SignalCombination, input_values
from cascade.signals.tokens import read_signals

BOTH = SignalCombination(("margin", "length"), (4.0, -1.0), (0.5, 1.0), 0.2)


def test_the_signal_is_the_logistic_of_its_parts() -> None:
    """Parts are beside the means, so that an average answer has none."""
    assert BOTH.parts({"margin": 0.5, "length": 1.0}) == {"margin": 0.0, "length": 0.0}
    assert BOTH.parts({"margin": 0.75, "length": 3.0}) == {"margin": 1.0, "length": -2.0}
    assert BOTH.value({"margin": 0.75, "length": 3.0}) == pytest.approx(0.3100, abs=1e-4)
    assert 0.0 <= BOTH.value({"margin": -1e6, "length": 0.0}) <= BOTH.value({"margin": 1e6, "length": 0.0}) <= 1.0


def test_an_unknown_input_makes_the_signal_unknown() -> None:
    """So that the answer escalates."""
    assert isnan(BOTH.value({"margin": 0.5}))
    assert isnan(BOTH.value({"margin": float("nan"), "length": 1.0}))


def test_inputs_are_computed_from_tokens() -> None:
    """All of them, the length as a logarithm."""
    values = input_values(read_signals([(-0.1, (-0.1, -3.0))] * 7))
    assert tuple(values) == COMBINED_INPUTS
    assert values["length"] == log1p(7)
