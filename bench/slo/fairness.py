"""How fairly something was given out. Figures only."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def jain_index(parts: Collection[float]) -> float:
    """1 where all have the same, 1 / n where one of n has all."""
    squares = sum(part * part for part in parts)
    return sum(parts) ** 2 / (len(parts) * squares) if squares else 1.0


def fair_parts(demand: Mapping[str, float], weight: Mapping[str, float], in_all: float) -> dict[str, float]:
    """Return each tenant's fair part of `in_all`: by weight, with unused parts going to the others by weight."""
    parts: dict[str, float] = {}
    left, weights = in_all, sum(weight[name] for name in demand)
    # Who wants least by his weight is content first; from the first who is not, all are held to the same.
    for name in sorted(demand, key=lambda one: demand[one] / weight[one]):
        parts[name] = min(demand[name], left * weight[name] / weights)
        left -= parts[name]
        weights -= weight[name]
    return parts
