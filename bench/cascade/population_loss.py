"""What a calibration file does to a whole population, and the best that any one threshold could do: what calibration
only estimates. Two models under one threshold are looked up in sums, so that thousands of draws can be judged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, isfinite

from cascade.calibration.examples import Example
from cascade.calibration.replay import replay
from cascade.calibration.thresholds import by_rank, cost_of_largest, evaluate_rules
from cascade.calibration_file import ANY_BUCKET, CalibrationFile, QualityGuarantee


@dataclass(frozen=True, slots=True)
class Effect:
    """On the whole population."""

    loss: float
    saved: float
    """Share of what always asking the largest model costs; may be negative."""


NOTHING = Effect(0.0, 0.0)
"""Always asking the largest model."""


class PopulationLoss:
    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples
        self._top = cost_of_largest(examples)
        self._is_simple = examples[0].largest == 1
        known = sorted((one for one in examples if isfinite(one.signals[0])), key=lambda one: -one.signals[0])
        self._signals = [-one.signals[0] for one in known]
        self._losses = list(accumulate((one.scores[-1] - one.scores[0] for one in known), initial=0.0))
        # Kept at the first model: its cost; else the top's, and what the first has done in vain.
        self._savings = list(accumulate((one.costs[-1] + one.wasted[0] - one.costs[0] for one in known), initial=0.0))
        self._wasted = sum(one.wasted[0] for one in examples)

    def of(self, file: CalibrationFile) -> Effect:
        """What the file's verdicts do."""
        if not file.is_promised:
            return NOTHING
        edges = {(cut.threshold, cut.edge, cut.edge_share) for cut in file.cuts}
        if self._is_simple and len(edges) == 1 and any(cut.bucket == ANY_BUCKET for cut in file.cuts):
            return self.at(*edges.pop())
        played = replay(file, self._examples)
        return Effect(played.loss, played.saved)

    def at(self, threshold: float, edge: float | None = None, share: float = 0.0) -> Effect:
        """What keeping the first model's answers from this signal on does, where there are two."""
        if threshold == inf and edge is None:
            return NOTHING
        loss, saving = self._sums(threshold)
        if edge is not None:
            # Chance decides at the edge: what is meant is the mean over it.
            more_loss, more_saving = self._sums(edge)
            loss, saving = loss + share * (more_loss - loss), saving + share * (more_saving - saving)
        return Effect(loss, (saving - self._wasted / len(self._examples)) / self._top)

    def _sums(self, threshold: float) -> tuple[float, float]:
        kept, count = bisect_right(self._signals, -threshold), len(self._examples)
        return self._losses[kept] / count, self._savings[kept] / count

    def best(self, max_loss: float) -> Effect:
        """The most that one threshold (or one share kept, of more models) saves without losing more than this."""
        if self._is_simple:
            return self.at(self.best_threshold(max_loss))
        steps = evaluate_rules(self._examples, by_rank(self._examples), QualityGuarantee(max_loss, 0.5))
        effects = [Effect(step.loss, 1.0 - step.cost / self._top) for step in steps if step.loss <= max_loss]
        return max([NOTHING, *effects], key=lambda effect: effect.saved)

    def best_threshold(self, max_loss: float) -> float:
        """The threshold that saves most without losing more than this, where there are two models."""
        fine = (-signal for signal in dict.fromkeys(self._signals) if self.at(-signal).loss <= max_loss)
        return max([inf, *fine], key=lambda threshold: self.at(threshold).saved)
