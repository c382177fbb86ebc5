"""A signal combined of several: the logistic function of a weighted sum, from 0 to 1, higher = surer.

Weights are fitted by `cascade/calibration/combine.py` on labelled answers that no threshold is tested on. A verdict by
such a signal is explained by its parts: what each input adds to the sum, beside that input's mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, isnan, log1p, nan

from cascade.signals.tokens import SIGNALS, TokenSignals

COMBINED = "combined"
"""Name of the signal in a calibration."""

LENGTH = "length"
"""Logarithm of 1 + the tokens that the other signals are computed from."""

COMBINED_INPUTS = (*SIGNALS, LENGTH)


@dataclass(frozen=True, slots=True)
class SignalCombination:
    """The combination of one model's signals. Tuples are by input."""

    inputs: tuple[str, ...]
    weights: tuple[float, ...]
    means: tuple[float, ...]
    """Of the inputs, in the labelled answers that the weights were fitted on."""
    intercept: float

    def parts(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return what each input adds to the sum; nan where its value is not known."""
        return {
            name: weight * (values.get(name, nan) - mean)
            for name, weight, mean in zip(self.inputs, self.weights, self.means, strict=True)
        }

    def value(self, values: Mapping[str, float]) -> float:
        """Return the signal; nan where an input is not known."""
        total = self.intercept + sum(self.parts(values).values())
        if isnan(total):
            return nan
        return 1.0 / (1.0 + exp(-total)) if total > -700.0 else 0.0


def input_values(signals: TokenSignals) -> dict[str, float]:
    """Return the inputs of a combination by name."""
    return {name: signals.value_of(name) for name in SIGNALS} | {LENGTH: log1p(signals.tokens)}
