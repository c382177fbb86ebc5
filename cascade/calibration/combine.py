"""Fits the combination of signals that tells best which answers lose nothing against the next model's.

Logistic regression with a small ridge, on a third of the rows by groups; thresholds are tested on the others only, so
that what was fitted says nothing of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, isfinite, log1p, nan, sqrt

from cascade.calibration.examples import LabelledExamples, LabelledRow, SignalValues
from cascade.signals.combination import COMBINED, COMBINED_INPUTS, LENGTH, SignalCombination

FIT_INTERVAL = 3
"""One row of so many is spent on the fit."""
MIN_FIT_ROWS = 60
"""Rows with known signals of a model, below which nothing is fitted."""
RIDGE = 1.0
"""In standard deviations of the inputs: of a few rows weights stay small."""
STEPS = 25
TOKENS = "tokens"
"""Column of the tokens that a collected row's signals were computed from."""


class TooFewRows(ValueError):  # noqa: N818 - what a file lacks
    """A file has too few rows, or too few signals, to fit a combination."""


def split_for_fit(labelled: LabelledExamples) -> tuple[LabelledExamples, LabelledExamples]:
    """Return the rows to fit on and the others. Rows of one group stay together."""
    fitted, tested = list[LabelledRow](), list[LabelledRow]()
    for at, row in enumerate(labelled.rows):
        # Not by the remainder that divides the tested rows once more where there are maps.
        is_fitted = (row.group or at) // FIT_INTERVAL % FIT_INTERVAL == 0
        (fitted if is_fitted else tested).append(row)
    return replace(labelled, rows=fitted), replace(labelled, rows=tested)


def fit_combinations(labelled: LabelledExamples) -> tuple[SignalCombination, ...]:
    """Return a combination for each model but the largest. Raises `TooFewRows`."""
    inputs = tuple(
        name for name in COMBINED_INPUTS if name in labelled.signals or (name == LENGTH and TOKENS in labelled.signals)
    )
    if len(inputs) < 2:
        raise TooFewRows(f"a combination takes two signals or more of {', '.join(COMBINED_INPUTS)}")
    return tuple(_fit(labelled, index, inputs) for index in range(len(labelled.models) - 1))


def with_combination(labelled: LabelledExamples, combinations: Sequence[SignalCombination]) -> LabelledExamples:
    """Return the same rows with the signal `combined` alone."""
    rows = []
    for row in labelled.rows:
        values = (each.value(_values(row, index)) for index, each in enumerate(combinations))
        rows.append(replace(row, signals=SignalValues((COMBINED,), ((*values, nan),))))
    return replace(labelled, signals=(COMBINED,), rows=rows)


def _values(row: LabelledRow, index: int) -> Mapping[str, float]:
    """Return the inputs of one model's answer."""
    values = {name: row.signals[name][index] for name in row.signals if name in COMBINED_INPUTS}
    if TOKENS in row.signals and (tokens := row.signals[TOKENS][index]) >= 0.0:
        values[LENGTH] = log1p(tokens)
    return values


def _fit(labelled: LabelledExamples, index: int, inputs: tuple[str, ...]) -> SignalCombination:
    found = list(_fit_rows(labelled, index, inputs))
    good = sum(is_good for _, is_good in found)
    if len(found) < MIN_FIT_ROWS or not 0 < good < len(found):
        raise TooFewRows(
            f"a combination takes {MIN_FIT_ROWS} rows for its fit with signals of {labelled.models[index]}, of which "
            f"some lose and others do not; there are {len(found):,}, {good:,} of them good"
        )
    count = len(found)
    means = [sum(values[at] for values, _ in found) / count for at in range(len(inputs))]
    deviations = [
        sqrt(sum((values[at] - means[at]) ** 2 for values, _ in found) / count) or 1.0 for at in range(len(inputs))
    ]
    scaled = [
        ([1.0, *((value - mean) / one for value, mean, one in zip(values, means, deviations, strict=True))], is_good)
        for values, is_good in found
    ]
    intercept, *weights = _logistic(scaled)
    return SignalCombination(
        inputs, tuple(weight / one for weight, one in zip(weights, deviations, strict=True)), tuple(means), intercept
    )


def _fit_rows(labelled: LabelledExamples, index: int, inputs: Sequence[str]) -> Iterator[tuple[list[float], bool]]:
    """Yield the inputs of each answer whose signals are known, and whether the next model's is no better."""
    for row in labelled.rows:
        values = _values(row, index)
        own = [values.get(name, nan) for name in inputs]
        if all(map(isfinite, own)):
            yield own, row.scores[index + 1] <= row.scores[index]


def _logistic(rows: Sequence[tuple[list[float], bool]]) -> list[float]:
    """Return the weights by Newton's method; the first is the intercept, which the ridge leaves alone."""
    size = len(rows[0][0])
    weights = [0.0] * size
    for _ in range(STEPS):
        gradient = [-RIDGE * weight * (at > 0) for at, weight in enumerate(weights)]
        hessian = [[RIDGE * (at == other > 0) for other in range(size)] for at in range(size)]
        for values, is_good in rows:
            total = sum(weight * value for weight, value in zip(weights, values, strict=True))
            share = 1.0 / (1.0 + exp(-max(-500.0, total)))
            spread = max(share * (1.0 - share), 1e-9)
            for at, value in enumerate(values):
                gradient[at] += (is_good - share) * value
                row = hessian[at]
                for other in range(at + 1):
                    row[other] += spread * value * values[other]
        for at in range(size):
            for other in range(at):
                hessian[other][at] = hessian[at][other]
        steps = _solved(hessian, gradient)
        weights = [weight + step for weight, step in zip(weights, steps, strict=True)]
        if max(map(abs, steps)) < 1e-8:
            break
    return weights


def _solved(matrix: list[list[float]], vector: list[float]) -> list[float]:
    """Return the solution of a positive definite system, by elimination."""
    size = len(vector)
    rows = [[*row, value] for row, value in zip(matrix, vector, strict=True)]
    for at in range(size):
        pivot = max(range(at, size), key=lambda other: abs(rows[other][at]))
        rows[at], rows[pivot] = rows[pivot], rows[at]
        for other in range(size):
            if other != at:
                factor = rows[other][at] / rows[at][at]
                rows[other] = [mine - factor * theirs for mine, theirs in zip(rows[other], rows[at], strict=True)]
    return [rows[at][size] / rows[at][at] for at in range(size)]
