"""What a request on an engine teaches: what was believed of it, what the engine says it took, and who learns."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from routing.affinity import Whereabouts
from routing.blocks import Prompt
from routing.cost import CostBook
from routing.ledger import Ledger
from routing.prefix_index import Trace, WarmIndex
from routing.replica_state import Voice
from routing.tokens import ExactCounter, TokenCounter

ALONE = 0.05
"""What is queued before a request, as a share of its own work, for its time to say what its own work takes."""


class Usage(Struct, frozen=True, gc=False):
    """What an engine says a request took. `cached_tokens` is None where it does not tell."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int | None = None


class Prediction(Struct, frozen=True, gc=False):
    """What was believed when the engine was chosen."""

    prompt_tokens: float
    warm_tokens: float
    ttft_s: float
    work_tokens: float
    """Prefill work before the first token: queued before it and its own."""
    running: float
    is_alone: bool = False
    """Whether next to nothing was queued before it."""
    own_s: float = 0.0
    """What the request's own prefill takes the engine, were it idle."""


class Learner(Protocol):
    """What a placement teaches: the router, as far as it is taught."""

    ledger: Ledger
    index: WarmIndex
    costs: CostBook
    responses: Whereabouts
    sessions: Whereabouts
    voice: Voice | None

    def counter(self, model: str) -> TokenCounter | ExactCounter:
        """What counts the tokens of a model's prompts."""
        ...

    def recycle(self, slot: int) -> None:
        """Nothing of this request is left on the engine in `slot`."""
        ...


def learn_warmth(learner: Learner, model: str, trace: Trace, usage: Usage, grown: Prompt | None) -> None:
    """Learn from a prompt that an engine has counted: how long it is, and how much of it was really there.

    `grown` is the prompt with its answer behind it, where that is known.
    """
    counter = learner.counter(model)
    counter.learn(trace.prompt, usage.prompt_tokens)
    if usage.cached_tokens is not None:
        learner.index.correct(trace, trace.prompt.size * usage.cached_tokens / usage.prompt_tokens)
    if grown is not None:
        learner.index.grow(trace, grown)
        counter.remember(grown, usage.prompt_tokens + usage.completion_tokens)
