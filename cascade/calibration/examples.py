"""Labelled examples: one prompt answered by every model of a cascade, each answer with its score, signals and price.

`LabelledExamples` is a file as read; `examples_of` chooses one signal and puts prices on answers. Values only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import isfinite, nan

from cascade.calibration_file import ANY_BUCKET, SignalStage
from cascade.models import EASE, Price, prompt_signal
from cascade.tasks import bucket_of, prompt_features

PREFERRED_SIGNALS = ("margin", "low_margin", "low", "entropy", "mean", "least")
"""Order in which a signal is chosen where a file has several: the margin did best where they were compared."""

LOWER_IS_SURER = ("entropy", "perplexity", "nll", "uncertainty", "difficulty", "surprisal", "variance")
"""Names that go the other way round in most files: their numbers are negated, unless they all stand below 0 already."""

CHARACTERS_PER_TOKEN = 4.0
DEFAULT_INPUT_TOKENS = 500.0
DEFAULT_OUTPUT_TOKENS = 256.0
"""Used where a file has no token counts."""


class SignalValues(Mapping[str, tuple[float, ...]]):
    """Values by signal; the names are shared by all rows."""

    __slots__ = ("_names", "_values")

    def __init__(self, names: tuple[str, ...], values: tuple[tuple[float, ...], ...]) -> None:
        self._names = names
        self._values = values

    def __getitem__(self, name: str) -> tuple[float, ...]:
        try:
            return self._values[self._names.index(name)]
        except ValueError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, slots=True)
class RowLabel:
    """How a collected row got its label. Tuples are by model; nan where the line has no value."""

    source: str
    losses: tuple[float, ...] = ()
    """What each model's answer is known to lose against the largest model's."""
    verdicts: tuple[float, ...] = ()
    """Of a judge, against the largest model's answer: 1 worse, 0 alike, -1 better."""


@dataclass(frozen=True, slots=True)
class LabelSummary:
    """What the labels of a collected file are, and how far they may be wrong."""

    sources: Mapping[str, int] = field(default_factory=dict)
    """Rows by the method that labels them."""
    error: float = 0.0
    """Probability that the labels understate the losses; a guarantee's test may err by as much less."""
    audited: tuple[int, ...] = ()
    """By model but the largest: answers with a true label that the judge did not call worse."""
    judge_losses: tuple[float, ...] = ()
    """By model but the largest: what an answer counts as losing that the judge does not call worse; 1 without an audit.
    """
    left_out: int = 0
    """Rows that are not used, since the true labels alone show more."""
    expected_share: float = nan
    """Share of the rows with an `expected` answer in which the largest model gives it; nan without any."""

    @property
    def unlabelled(self) -> int:
        """Rows that no method labels: all their answers count as lost."""
        return self.sources.get("none", 0)


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """One line. Tuples are by model; nan where the line has no value."""

    scores: tuple[float, ...]
    signals: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    bucket: str | None = None
    prompt: str | None = None
    input_tokens: float = nan
    output_tokens: tuple[float, ...] = ()
    costs: tuple[float, ...] = ()
    group: int = 0
    """Rows of one group depend on each other: one prompt, or one value of the column `group`. 0: of no group."""
    outcomes: Mapping[str, tuple[float, ...]] | None = None
    """As `Example.outcomes`."""
    label: RowLabel | None = None
    """Of a collected row; None where a file states scores only."""


@dataclass(frozen=True, slots=True)
class LabelledExamples:
    """A whole file: models cheapest first, signals in the order of its columns."""

    models: tuple[str, ...]
    signals: tuple[str, ...]
    rows: Sequence[LabelledRow]
    prompt_signals: frozenset[str] = frozenset()
    """The signals that are of the prompt, not of an answer."""
    labels: LabelSummary | None = None
    """Of a collected file; None where a file states scores only."""
    stage: SignalStage | None = None
    """When the signals were taken, where the file states it."""

    def default_signal(self) -> str:
        """Return the default signal: one that the gateway computes in production."""
        ofanswers = [name for name in self.signals if name not in self.prompt_signals]
        return next((name for name in PREFERRED_SIGNALS if name in ofanswers), EASE)

    def default_stage(self, signal: str) -> SignalStage:
        """When that signal is known, as far as its column tells."""
        if self.stage is not None and signal != EASE:
            return self.stage
        return SignalStage.PROMPT if signal == EASE or signal in self.prompt_signals else SignalStage.WINDOW


@dataclass(frozen=True, slots=True)
class AnswerPricing:
    """How answers get their price. Without prices and costs the largest model costs 1 and the others nothing."""

    prices: Mapping[str, Price] = field(default_factory=dict)
    stage: SignalStage = SignalStage.WINDOW
    window_tokens: int = 48

    def costs(self, row: LabelledRow, models: Sequence[str]) -> tuple[float, ...]:
        """Of whole answers."""
        return tuple(self._cost(row, index, model, len(models) - 1) for index, model in enumerate(models))

    def wasted(self, row: LabelledRow, models: Sequence[str]) -> tuple[float, ...]:
        """Of what each model below the top has done in vain when the next one takes over."""
        if self.stage is SignalStage.PROMPT:
            return (0.0,) * (len(models) - 1)
        costs = self.costs(row, models)[:-1]
        if self.stage is not SignalStage.WINDOW:
            return costs
        return tuple(min(cost, self._windowed(row, index, models[index], cost)) for index, cost in enumerate(costs))

    def _cost(self, row: LabelledRow, index: int, model: str, top: int) -> float:
        given = row.costs[index] if row.costs else nan
        if isfinite(given):
            return given
        if model in self.prices:
            return self.prices[model].cost(cold_tokens=_input(row), output_tokens=_output(row, index))
        return 1.0 if index == top else 0.0

    def _windowed(self, row: LabelledRow, index: int, model: str, cost: float) -> float:
        if model in self.prices and not (row.costs and isfinite(row.costs[index])):
            return self.prices[model].cost(cold_tokens=_input(row), output_tokens=float(self.window_tokens))
        # How a price given as one number divides into prompt and answer is not known: all of it counts.
        return cost


def _input(row: LabelledRow) -> float:
    if isfinite(row.input_tokens):
        return row.input_tokens
    return DEFAULT_INPUT_TOKENS if row.prompt is None else len(row.prompt) / CHARACTERS_PER_TOKEN


def _output(row: LabelledRow, index: int) -> float:
    given = row.output_tokens[index] if row.output_tokens else nan
    return given if isfinite(given) else DEFAULT_OUTPUT_TOKENS


def examples_of(labelled: LabelledExamples, signal: str, tariff: AnswerPricing) -> list[Example]:
    """The examples by one signal. Raises KeyError for a signal that the file does not have."""
    if signal not in labelled.signals and signal != EASE:
        raise KeyError(signal)
    smaller = len(labelled.models) - 1
    is_turned = any(word in signal.lower() for word in LOWER_IS_SURER) and any(
        value > 0.0 for row in labelled.rows for value in _signals(row, signal, smaller)
    )
    shared: dict[tuple[float, ...], tuple[float, ...]] = {}

    def share(value: tuple[float, ...]) -> tuple[float, ...]:
        return shared.setdefault(value, value) if len(shared) < MAX_SHARED else shared.get(value, value)

    found = []
    for row in labelled.rows:
        values = _signals(row, signal, smaller)
        found.append(
            Example(
                bucket=_bucket(row),
                scores=row.scores,
                signals=tuple(-value for value in values) if is_turned else values,
                costs=share(tariff.costs(row, labelled.models)),
                wasted=share(tariff.wasted(row, labelled.models)),
                outcomes=row.outcomes,
                group=row.group,
            )
        )
    return found


MAX_SHARED = 4_096
"""Distinct prices that examples share, so that a million of them fit into memory."""


def _signals(row: LabelledRow, signal: str, count: int) -> tuple[float, ...]:
    if signal in row.signals:
        return row.signals[signal][:count]
    ease = prompt_signal(signal, prompt_features([row.prompt])) if row.prompt is not None else None
    return (nan if ease is None else ease,) * count


def _bucket(row: LabelledRow) -> str:
    if row.bucket is not None:
        return row.bucket
    return ANY_BUCKET if row.prompt is None else str(bucket_of(prompt_features([row.prompt])))


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt. All tuples go by model, cheapest first; there are two models or more."""

    bucket: str
    scores: tuple[float, ...]
    """Of each model's answer, 0 (worthless) to 1 (as good as can be)."""
    signals: tuple[float, ...]
    """Of each model but the top; higher = surer, nan where it is not known."""
    costs: tuple[float, ...]
    """Of each model's whole answer."""
    wasted: tuple[float, ...]
    """Of what each model but the top has computed when its answer is given up; nothing where the prompt decides."""
    outcomes: Mapping[str, tuple[float, ...]] | None = None
    """By comparison and model but the top: 1 where its answer is worse than the next model's, -1 where better, 0 alike,
    nan where they were not compared."""
    group: int = 0
    """Examples of one group depend on each other; 0: of none."""

    @property
    def largest(self) -> int:
        return len(self.scores) - 1


def fingerprint(examples: Sequence[Example]) -> str:
    """Of what was calibrated on, so that a calibration file can be held against its data: sha256:HEX."""
    digest = sha256()
    for example in examples:
        given = (example.bucket, example.scores, example.signals, example.costs, example.wasted)
        digest.update(repr(given).encode())
        if example.outcomes is not None:
            digest.update(repr(sorted(example.outcomes.items())).encode())
    return f"sha256:{digest.hexdigest()}"
