"""A cascade: the models behind one name, cheapest first, and which of them a request starts with.

Pure: which models are unavailable, forbidden by policy or overloaded is an argument. Starting with a larger model never
lowers quality; it only saves the price of an answer that would have been discarded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from cascade.calibration_file import LadderFile, Stage, Verdict, judge
from cascade.tasks import Features, difficulty


class Ability(StrEnum):
    """What not every model can."""

    TOOLS = "tools"
    JSON = "json"
    VISION = "vision"
    REASONING = "reasoning"


ALL_ABILITIES = frozenset(Ability)


@dataclass(frozen=True, slots=True)
class Price:
    """What one rung takes, in any one currency; by token, by second of a GPU, or both."""

    input_per_token: float = 0.0
    cached_input_per_token: float | None = None
    """None: cached input costs what other input costs."""
    output_per_token: float = 0.0
    per_gpu_s: float = 0.0

    def of(self, *, cold_tokens: float, warm_tokens: float = 0.0, output_tokens: float, gpu_s: float = 0.0) -> float:
        """The price of one answer."""
        cached = self.input_per_token if self.cached_input_per_token is None else self.cached_input_per_token
        tokens = self.input_per_token * cold_tokens + cached * warm_tokens + self.output_per_token * output_tokens
        return tokens + self.per_gpu_s * gpu_s


@dataclass(frozen=True, slots=True)
class Rung:
    """One model of a ladder."""

    model: str
    price: Price = Price()
    context_tokens: int | None = None
    """The longest prompt with its answer, None where nothing is known."""
    abilities: frozenset[Ability] = ALL_ABILITIES

    def can(self, needs: frozenset[Ability], tokens: int) -> bool:
        """Whether it has these abilities, and room for so many tokens of prompt and answer."""
        return needs <= self.abilities and (self.context_tokens is None or tokens <= self.context_tokens)


@dataclass(frozen=True, slots=True)
class Window:
    """How much of an answer is held until it is judged: so many answer tokens, or so long, whichever ends first."""

    tokens: int = 48
    max_added_ttft_s: float = 0.15
    top: int = 5
    """How many of the likeliest tokens are asked for at each place; at least two, for a margin."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """One model name to the client, several behind it, cheapest first."""

    name: str
    rungs: tuple[Rung, ...]
    window: Window | None = None
    """None: streams are not held back."""
    whole: bool = False
    """Whether answers that come whole are judged whole."""
    file: LadderFile | None = None
    uncalibrated: float = 0.0
    """Without a file: the share of requests that begin at the lowest rung; the others begin at the top."""

    @property
    def judges(self) -> bool:
        """Whether any answer is judged after it was begun. If not, the ladder chooses where to start and no more."""
        return self.window is not None or self.whole

    def at(self, model: str) -> int | None:
        """Which rung a model is, counted from the cheapest."""
        return next((at for at, rung in enumerate(self.rungs) if rung.model == model), None)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request needs of its rung, and what policy or client allow it. Rungs are counted from the cheapest."""

    needs: frozenset[Ability] = frozenset()
    tokens: int = 0
    """Of its prompt and of the longest answer it may have."""
    least: int = 0
    most: int | None = None
    climbs: bool = True
    """Whether it may end on a higher rung than it began at."""


def open_rungs(ladder: Ladder, wish: Wish, is_up: Callable[[str], bool] | None = None) -> tuple[int, ...]:
    """The rungs that can and may take the request, cheapest first; empty where none can."""
    return tuple(
        at
        for at, rung in enumerate(ladder.rungs)
        if wish.least <= at and (wish.most is None or at <= wish.most) and rung.can(wish.needs, wish.tokens)
        if is_up is None or is_up(rung.model)
    )


def start_rung(
    ladder: Ladder, rungs: tuple[int, ...], bucket: str, features: Features, *, draw: float = 1.0
) -> int | None:
    """Where to begin among the open rungs; None where none is open.

    Without calibration the ladder says which share begins at the lowest; where a promise is not made this is the top of
    them: quality goes first until there is evidence. A ladder file of the prompt stage decides each rung by the prompt;
    a later stage begins at the lowest rung of which anything may be kept. `draw` in [0, 1) is that of `judge`, and
    decides without calibration.
    """
    if not rungs:
        return None
    file = ladder.file
    if file is None:
        return rungs[0] if draw < ladder.uncalibrated else rungs[-1]
    if not file.is_promised:
        return rungs[-1]
    for at in rungs[:-1]:
        if file.stage is Stage.PROMPT:
            if judge(file, at, bucket, prompt_signal(file.signal, features), draw=draw) is Verdict.KEEP:
                return at
        elif file.may_keep(at, bucket):
            return at
    return rungs[-1]


def prompt_signal(name: str, features: Features) -> float | None:
    """A signal of the prompt alone, by the name that a ladder file gives it; None for one that we cannot reckon."""
    return -difficulty(features) if name == EASE else None


EASE = "ease"
"""The difficulty of a prompt, negated."""
