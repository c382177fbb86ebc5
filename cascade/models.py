"""A cascade: the models behind one name, cheapest first, and which of them a request starts with.

Pure: which models are unavailable, forbidden by policy or overloaded is an argument. Starting with a larger model never
lowers quality; it only saves the price of an answer that would have been discarded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from cascade.calibration_file import AnswerVerdict, CalibrationFile, SignalStage, judge_signal
from cascade.tasks import PromptFeatures, difficulty


class Ability(StrEnum):
    """What not every model supports."""

    TOOLS = "tools"
    JSON = "json"
    VISION = "vision"
    REASONING = "reasoning"


ALL_ABILITIES = frozenset(Ability)


@dataclass(frozen=True, slots=True)
class Price:
    """Price of one model in any currency; by token, by second of a GPU, or both."""

    input_per_token: float = 0.0
    cached_input_per_token: float | None = None
    """None: cached input costs the same as other input."""
    output_per_token: float = 0.0
    per_gpu_s: float = 0.0

    def cost(self, *, cold_tokens: float, warm_tokens: float = 0.0, output_tokens: float, gpu_s: float = 0.0) -> float:
        """Return the cost of one answer."""
        cached = self.input_per_token if self.cached_input_per_token is None else self.cached_input_per_token
        tokens = self.input_per_token * cold_tokens + cached * warm_tokens + self.output_per_token * output_tokens
        return tokens + self.per_gpu_s * gpu_s


@dataclass(frozen=True, slots=True)
class CascadeModel:
    """One model of a cascade."""

    name: str
    price: Price = Price()
    context_tokens: int | None = None
    """Most tokens of prompt and answer together; None where unknown."""
    abilities: frozenset[Ability] = ALL_ABILITIES

    def can_take(self, needs: frozenset[Ability], tokens: int) -> bool:
        """Return whether it has these abilities, and room for this many tokens of prompt and answer."""
        return needs <= self.abilities and (self.context_tokens is None or tokens <= self.context_tokens)


@dataclass(frozen=True, slots=True)
class HoldbackWindow:
    """How much of an answer is held until it is judged: a number of tokens or a time, whichever ends first."""

    tokens: int = 48
    max_added_ttft_s: float = 0.15
    top: int = 5
    """Likeliest tokens requested at each position; at least two, for a margin."""


@dataclass(frozen=True, slots=True)
class Cascade:
    """One model name to the client, several models behind it, cheapest first."""

    name: str
    models: tuple[CascadeModel, ...]
    holdback_window: HoldbackWindow | None = None
    """None: streams are not held back."""
    judges_unary: bool = False
    """Whether answers that are not streamed are judged."""
    calibration: CalibrationFile | None = None
    uncalibrated_share: float = 0.0
    """Without a calibration: the share of requests that start with the smallest model; the others start with the
    largest."""
    buckets: frozenset[str] = frozenset()
    """Task buckets that requests and tenants may name, beside the computed ones."""

    @property
    def judges_answers(self) -> bool:
        """Whether any answer is judged. If not, the cascade only chooses the model that a request starts with."""
        return self.holdback_window is not None or self.judges_unary

    def index_of(self, model: str) -> int | None:
        """Return the index of a model by its name, cheapest first; None where it is not in the cascade."""
        return next((at for at, each in enumerate(self.models) if each.name == model), None)


@dataclass(frozen=True, slots=True)
class StartConstraints:
    """What a request needs of its model, and what policy or client allow. Models are indices, cheapest first."""

    needs: frozenset[Ability] = frozenset()
    tokens: int = 0
    """Of the prompt and the longest answer allowed."""
    min_index: int = 0
    max_index: int | None = None


def eligible_models(
    cascade: Cascade, wish: StartConstraints, is_up: Callable[[str], bool] | None = None
) -> tuple[int, ...]:
    """Return the models that can and may take the request, cheapest first; empty where none can."""
    return tuple(
        at
        for at, each in enumerate(cascade.models)
        if wish.min_index <= at
        and (wish.max_index is None or at <= wish.max_index)
        and each.can_take(wish.needs, wish.tokens)
        if is_up is None or is_up(each.name)
    )


def initial_model(
    cascade: Cascade, eligible: tuple[int, ...], bucket: str, features: PromptFeatures, *, draw: float = 1.0
) -> int | None:
    """Return the model to start with among the eligible ones; None where none is eligible.

    Without a calibration `uncalibrated` is the share that starts with the smallest. Where no guarantee is made it is
    the largest of them: quality goes first until there is evidence. A calibration of the prompt stage judges each model
    by the prompt; a later stage starts with the smallest model of which any answer may be accepted. `draw` in [0, 1)
    decides at the edge of a threshold, and without a calibration.
    """
    if not eligible:
        return None
    file = cascade.calibration
    if file is None:
        return eligible[0] if draw < cascade.uncalibrated_share else eligible[-1]
    if not file.is_promised:
        return eligible[-1]
    for at in eligible[:-1]:
        if file.stage is SignalStage.PROMPT:
            if judge_signal(file, at, bucket, prompt_signal(file.signal, features), draw=draw) is AnswerVerdict.KEEP:
                return at
        elif file.may_accept(at, bucket):
            return at
    return eligible[-1]


EASE = "ease"
"""Name of the one signal of a prompt: its difficulty, negated."""


def prompt_signal(name: str, features: PromptFeatures) -> float | None:
    """Return a signal of the prompt alone, by its name in a calibration; None where it cannot be computed."""
    return -difficulty(features) if name == EASE else None
