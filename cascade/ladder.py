"""A ladder: the models behind one name, cheapest first, what they cost and can do, and how an answer is held back.

Values. Know neither pods nor how a rung is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cascade.ladder_file import LadderFile


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
