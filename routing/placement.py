"""A request on an engine: what was predicted, and the three moments at which the router learns from it.

The shell that carries the request tells the moments; time is an argument. Whatever happens, `release` ends it.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from routing.affinity import LastSeen
from routing.ballot import Ballot, Few
from routing.blocks import Prompt
from routing.cost import CostBook
from routing.fleet import Engine
from routing.ledger import Charge, Ledger
from routing.request import Request
from routing.tokens import ExactCounter, TokenCounter
from routing.warmth import Trace, WarmIndex


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


class Learner(Protocol):
    """What a placement teaches: the router, as far as it is taught."""

    ledger: Ledger
    index: WarmIndex
    costs: CostBook
    responses: LastSeen[str, int]

    def counter(self, model: str) -> TokenCounter | ExactCounter:
        """What counts the tokens of a model's prompts."""
        ...

    def recycle(self, slot: int) -> None:
        """Nothing of this request is left on the engine in `slot`."""
        ...


class Placement:
    """One request on one engine, from the choice to its end."""

    __slots__ = (
        "_ballot",
        "_charge",
        "_few",
        "_learner",
        "_trace",
        "candidates_in_all",
        "engine",
        "first_token_s",
        "placed_s",
        "predicted",
        "request",
    )

    def __init__(
        self,
        learner: Learner,
        request: Request,
        engine: Engine,
        charge: Charge,
        trace: Trace,
        ballot: Ballot,
    ) -> None:
        candidates, at = ballot.candidates, ballot.at
        self._learner = learner
        self._charge = charge
        self._trace = trace
        self.request = request
        self.engine = engine
        self._ballot = ballot
        self._few: Few | None = None
        self.candidates_in_all = len(candidates.engines)
        self.placed_s = candidates.now_s
        self.first_token_s: float | None = None
        work = candidates.ahead_tokens[at] + candidates.prefill_work[at]
        self.predicted = Prediction(
            prompt_tokens=candidates.prompt_tokens,
            warm_tokens=candidates.warm_tokens[at],
            ttft_s=candidates.prefill_overhead_s[at] + work * candidates.seconds_per_token[at],
            work_tokens=work,
            running=candidates.running[at],
        )

    def __repr__(self) -> str:
        return f"<Placement of {self.request.id} on {self.engine.name}>"

    def few(self) -> Few:
        """The candidates that a receipt shows. All others are let go: a stream may last, and engines are many."""
        if self._few is None:
            self._few = self._ballot.few()
            del self._ballot
        return self._few

    def first_token(self, now_s: float) -> None:
        """The engine has begun to answer: its prefill is done."""
        if self.first_token_s is not None:
            return
        self.first_token_s = now_s
        self.few()
        learner = self._learner
        learner.ledger.prefill_done(self._charge, now_s)
        learner.index.computed(self._trace)
        learner.costs.observe_first_token(self.engine.slot, self.predicted.work_tokens, now_s - self.placed_s)

    def settle(self, usage: Usage | None, now_s: float, *, answer: bytes = b"", response_id: str | None = None) -> None:
        """The engine has answered in full. Learn from what it says the request took, and from the answer it now holds.

        `answer` is the canonical form of what was generated, as the next turn's prompt will contain it.
        """
        # An answer without a first token of its own (not streamed) still shows that the prompt was computed.
        self._learner.index.computed(self._trace)
        if response_id:
            self._learner.responses.put(response_id, self.engine.slot)
        if usage is None:
            return
        self._learn_warmth(usage, answer)
        if self.first_token_s is not None:
            self._learner.costs.observe_decode(
                self.engine.slot,
                (self.predicted.running + self._learner.ledger.running[self.engine.slot]) / 2,
                usage.completion_tokens // self.request.sequences - 1,
                now_s - self.first_token_s,
            )

    def release(self, now_s: float) -> None:
        """The request has left the engine, however it ended. Safe to call again."""
        learner = self._learner
        if self.first_token_s is None:
            learner.index.retract(self._trace)
        learner.ledger.release(self._charge, now_s)
        learner.recycle(self.engine.slot)

    def _learn_warmth(self, usage: Usage, answer: bytes) -> None:
        if not usage.prompt_tokens or self.request.continues:
            # Of a response that continues another we see the newest part only, and the engine counts the whole.
            return
        index, prompt = self._learner.index, self.request.prompt
        counter = self._learner.counter(self.request.model)
        counter.learn(prompt, usage.prompt_tokens)
        if usage.cached_tokens is not None:
            index.correct(self._trace, prompt.size * usage.cached_tokens / usage.prompt_tokens)
        if answer:
            grown: Prompt = prompt.extended(answer)
            index.grow(self._trace, grown)
            counter.remember(grown, usage.prompt_tokens + usage.completion_tokens)
