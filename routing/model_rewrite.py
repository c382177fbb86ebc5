"""A model name that other models answer, each for its share of requests: chosen by a draw that is an argument."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelRewrite:
    """The models that answer instead of a requested one."""

    targets: tuple[tuple[str, int], ...]
    """Name and weight of each, at least one; weights are 1 or more."""

    def choose(self, draw: float) -> str:
        """Return a target by its share of the weights. `draw`: uniform in [0, 1)."""
        left = draw * sum(weight for _, weight in self.targets)
        for name, weight in self.targets:
            left -= weight
            if left < 0:
                return name
        return self.targets[-1][0]
