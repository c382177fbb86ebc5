"""How many times what was expected is really seen: the one thing that the router learns, of seconds and of tokens."""

from __future__ import annotations

from dataclasses import dataclass

OUTLIER = 4.0
"""A ratio above this many times the mean (a pause, an engine's first step) counts as this many times."""

LARGEST_STEP = 0.25
"""How far towards itself one observation moves the mean at most, however much it weighs."""


@dataclass(slots=True)
class Ratio:
    """A weighted mean that forgets. Weights are in observations of usual size.

    `seen` is how much has been observed in all; beyond `memory` the old fades as the new comes.
    """

    memory: float
    value: float = 1.0
    seen: float = 0.0

    def observe(self, ratio: float, weight: float = 1.0) -> None:
        """What was seen was `ratio` times what was expected."""
        if weight <= 0:
            return
        self.seen += weight
        step = min(weight / min(self.seen, self.memory), LARGEST_STEP)
        self.value += step * (min(ratio, OUTLIER * self.value) - self.value)

    def leaning_on(self, other: Ratio, doubt: float) -> float:
        """The mean as if `doubt` observations had said what another says: all of it at first, none in the end."""
        return (self.seen * self.value + doubt * other.value) / (self.seen + doubt)
