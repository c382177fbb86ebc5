"""Least squares with coefficients that cannot be negative. Small, dense, exact to rounding; no dependency."""

from __future__ import annotations

from collections.abc import Sequence

TOLERANCE = 1e-10


def solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve a square system by elimination with pivots; a column without a pivot gets 0."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    scale = max((abs(value) for row in matrix for value in row), default=0.0)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        if abs(rows[column][column]) <= TOLERANCE * scale:
            rows[column] = [0.0] * column + [scale or 1.0] + [0.0] * (size - column)
            continue
        for row in range(column + 1, size):
            factor = rows[row][column] / rows[column][column]
            if factor:
                rows[row] = [one - factor * other for one, other in zip(rows[row], rows[column], strict=True)]
    found = [0.0] * size
    for row in range(size - 1, -1, -1):
        known = sum(rows[row][column] * found[column] for column in range(row + 1, size))
        found[row] = (rows[row][size] - known) / rows[row][row]
    return found


def fit_non_negative(features: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Return the coefficients >= 0 that leave the smallest sum of squares (Lawson and Hanson).

    `features` has a row per value and a column per coefficient. Scale rows before to weigh them.
    """
    count = len(features[0]) if features else 0
    scales = [max((abs(row[column]) for row in features), default=0.0) or 1.0 for column in range(count)]
    rows = [[value / scale for value, scale in zip(row, scales, strict=True)] for row in features]
    gram = [[sum(row[i] * row[j] for row in rows) for j in range(count)] for i in range(count)]
    target = [sum(row[i] * value for row, value in zip(rows, values, strict=True)) for i in range(count)]
    found, free = [0.0] * count, set[int]()
    for _ in range(3 * count + 1):
        slope = [target[i] - sum(gram[i][j] * found[j] for j in range(count)) for i in range(count)]
        rising = [i for i in range(count) if i not in free and slope[i] > TOLERANCE * max(1.0, abs(target[i]))]
        if not rising:
            break
        free.add(max(rising, key=lambda i: slope[i]))
        found = _descend(gram, target, found, free)
    return [value / scale for value, scale in zip(found, scales, strict=True)]


def _descend(gram: list[list[float]], target: list[float], found: list[float], free: set[int]) -> list[float]:
    """Solve for the free coefficients, and hold at 0 those that would turn negative on the way."""
    while free:
        order = sorted(free)
        solved = solve([[gram[i][j] for j in order] for i in order], [target[i] for i in order])
        best = dict(zip(order, solved, strict=True))
        if all(value > 0 for value in solved):
            return [best.get(i, 0.0) for i in range(len(found))]
        step = min(found[i] / (found[i] - best[i]) if found[i] != best[i] else 0.0 for i in order if best[i] <= 0)
        found = [value + step * (best.get(i, 0.0) - value) for i, value in enumerate(found)]
        stuck = [i for i in order if best[i] <= 0 and found[i] <= TOLERANCE]
        free.difference_update(stuck or [min(order, key=lambda i: found[i])])
        found = [value if i in free else 0.0 for i, value in enumerate(found)]
    return [0.0] * len(found)
