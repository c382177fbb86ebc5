"""Finds a minimum of a function of a few numbers without its derivatives: in a box by differential evolution, then from
the best point found by the method of Nelder and Mead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

REFLECT, EXPAND, CONTRACT, SHRINK = 1.0, 2.0, 0.5, 0.5

CROSSOVER = 0.9
"""Share of coordinates that a new point has from the mixture."""

Box = Sequence[tuple[float, float]]
"""Bounds of each coordinate."""

Point = list[float]
Valued = tuple[float, Point]


def evolve(
    value: Callable[[Sequence[float]], float], box: Box, *, population: int, generations: int, seed: int
) -> Valued:
    """Return the least value found in a box and where. A population has at least four points."""
    draw = Random(seed)
    points = [[draw.uniform(low, high) for low, high in box] for _ in range(population)]
    corners = [(value(point), point) for point in points]
    for _ in range(generations):
        for place, (old, point) in enumerate(corners):
            _, best = min(corners, key=lambda corner: corner[0])
            (_, one), (_, other) = draw.sample([*corners[:place], *corners[place + 1 :]], 2)
            share = draw.uniform(0.4, 0.9)
            fresh = [
                min(max(at + share * (aim - at) + share * (left - right), low), high)
                if draw.random() < CROSSOVER
                else at
                for at, aim, left, right, (low, high) in zip(point, best, one, other, box, strict=True)
            ]
            found = value(fresh)
            if found < old:
                corners[place] = found, fresh
    return min(corners, key=lambda corner: corner[0])


def minimize(
    value: Callable[[Sequence[float]], float], start: Sequence[float], step: float, evaluations: int, tolerance: float
) -> Valued:
    """Return the least value found and where.

    `step`: size of the first simplex. Ends after so many evaluations, or when the values at its corners are nearer than
    `tolerance` to each other.
    """
    corners: list[Valued] = []
    for moved in range(-1, len(start)):
        point = [one + (step if place == moved else 0.0) for place, one in enumerate(start)]
        corners.append((value(point), point))
    left = evaluations - len(corners)
    while left > 0:
        corners.sort(key=lambda corner: corner[0])
        if corners[-1][0] - corners[0][0] < tolerance:
            break
        left -= _move(corners, value)
    return min(corners, key=lambda corner: corner[0])


def _move(corners: list[Valued], value: Callable[[Sequence[float]], float]) -> int:
    """Replace the worst corner, or shrink all towards the best. Return how many evaluations it took."""
    worst = corners[-1][1]
    others = [point for _, point in corners[:-1]]
    middle = [sum(values) / len(others) for values in zip(*others, strict=True)]

    def tried(share: float) -> Valued:
        point = [center + share * (center - far) for center, far in zip(middle, worst, strict=True)]
        return value(point), point

    reflected = tried(REFLECT)
    if reflected[0] < corners[0][0]:
        corners[-1] = min(tried(EXPAND), reflected, key=lambda corner: corner[0])
        return 2
    if reflected[0] < corners[-2][0]:
        corners[-1] = reflected
        return 1
    inner = tried(CONTRACT if reflected[0] < corners[-1][0] else -CONTRACT)
    if inner[0] < min(reflected[0], corners[-1][0]):
        corners[-1] = inner
        return 2
    best = corners[0][1]
    for place in range(1, len(corners)):
        point = [near + SHRINK * (far - near) for near, far in zip(best, corners[place][1], strict=True)]
        corners[place] = value(point), point
    return 1 + len(corners)
