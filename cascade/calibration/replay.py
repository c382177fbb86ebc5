"""What a calibration file does to labelled examples: the verdicts of production, and what they lose and cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field

from cascade.calibration.examples import Example
from cascade.calibration.signal_quality import Interval, mean_interval
from cascade.calibration.thresholds import tie_break
from cascade.calibration_file import AnswerVerdict, CalibrationFile, judge_signal

NO_INTERVAL = Interval(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Means over the examples, as in `CalibrationEvidence`."""

    examples: int
    loss: float
    cost: float
    cost_always_top: float
    cost_always_first: float
    quality: float
    quality_always_top: float
    quality_always_first: float
    answered: tuple[float, ...]
    """Share of the examples that each model answered."""
    losses: dict[str, float] = field(default_factory=dict)
    """Mean loss by bucket."""
    loss_interval: Interval = NO_INTERVAL
    saving_interval: Interval = NO_INTERVAL
    """Of the saved share of what the largest model costs."""

    @property
    def kept(self) -> float:
        """Share of the examples that did not reach the largest model."""
        return 1.0 - self.answered[-1]

    @property
    def saved(self) -> float:
        """Share of the cost of always asking the largest model."""
        return 1.0 - self.cost / self.cost_always_top if self.cost_always_top else 0.0


def answering_model(file: CalibrationFile, example: Example, draw: float = 1.0) -> tuple[int, float]:
    """Which model's answer the client gets, and what all models asked for it cost together."""
    cost = 0.0
    for index in range(example.largest):
        if not file.may_accept(index, example.bucket):
            continue
        if judge_signal(file, index, example.bucket, example.signals[index], draw=draw) is AnswerVerdict.KEEP:
            return index, cost + example.costs[index]
        cost += example.wasted[index]
    return example.largest, cost + example.costs[-1]


def replay(file: CalibrationFile, examples: Sequence[Example]) -> ReplayResult:
    """All examples through the cascade; there must be one at least."""
    count, counts = len(examples), Counter[str]()
    losses: dict[str, float] = {}
    answered, cost, quality = [0] * len(file.models), 0.0, 0.0
    all_losses, savings = list[float](), list[float]()
    for at, example in enumerate(examples):
        index, price = answering_model(file, example, tie_break(at))
        answered[index] += 1
        cost += price
        quality += example.scores[index]
        losses[example.bucket] = losses.get(example.bucket, 0.0) + example.scores[-1] - example.scores[index]
        counts[example.bucket] += 1
        all_losses.append(example.scores[-1] - example.scores[index])
        savings.append(example.costs[-1] - price)
    best = sum(example.scores[-1] for example in examples)
    always_top = sum(example.costs[-1] for example in examples) / count
    saved = mean_interval(savings)
    return ReplayResult(
        examples=count,
        loss=(best - quality) / count,
        cost=cost / count,
        cost_always_top=always_top,
        cost_always_first=sum(example.costs[0] for example in examples) / count,
        quality=quality / count,
        quality_always_top=best / count,
        quality_always_first=sum(example.scores[0] for example in examples) / count,
        answered=tuple(number / count for number in answered),
        losses={bucket: losses[bucket] / counts[bucket] for bucket in sorted(counts)},
        loss_interval=mean_interval(all_losses),
        saving_interval=Interval(*(part / always_top if always_top else 0.0 for part in astuple(saved))),
    )
