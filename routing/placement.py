"""A request on an engine: what was predicted, and the three moments at which the router learns from it.

The shell that carries the request tells the moments; time is an argument. Whatever happens, `release` ends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from routing.affinity import Whereabouts, key_of
from routing.ballot import Ballot, Few
from routing.blocks import Prompt
from routing.cost import CostBook
from routing.fallback import Fallback
from routing.ledger import Charge, Ledger
from routing.news import Settled, Voice
from routing.pods import Engine
from routing.request import Request
from routing.tokens import ExactCounter, TokenCounter
from routing.warmth import Trace, WarmIndex

if TYPE_CHECKING:
    from routing.prefill_side import Handover, PrefillSide

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


class Placement:
    """One request on one engine, from the choice to its end."""

    __slots__ = (
        "_ballot",
        "_charge",
        "_few",
        "_is_moved",
        "_learner",
        "_trace",
        "candidates_in_all",
        "engine",
        "fallback",
        "first_token_s",
        "placed_s",
        "predicted",
        "prefill",
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
        *,
        prefill: PrefillSide | None = None,
        fallback: Fallback | None = None,
    ) -> None:
        """`prefill` is the other side of a pair; without it the engine does its own prefill. `fallback` says why it is
        no pair where it should be one.
        """
        candidates, at = ballot.candidates, ballot.at
        self._learner = learner
        self._charge = charge
        self._trace = trace
        self.request = request
        self.engine = engine
        self.prefill = prefill
        self.fallback = fallback
        self._ballot = ballot
        self._few: Few | None = None
        self.candidates_in_all = candidates.engines_in_all or len(candidates.engines)
        self.placed_s = candidates.now_s
        self.first_token_s: float | None = None
        self._is_moved = False
        ahead_s, own_s = candidates.ahead_s[at], candidates.own_s[at]
        work = candidates.prefill_work[at] + ahead_s / candidates.seconds_per_token[at]
        self.predicted = Prediction(
            prompt_tokens=candidates.prompt_tokens,
            warm_tokens=candidates.warm_tokens[at],
            ttft_s=candidates.prefill_overhead_s[at] + ahead_s + own_s,
            work_tokens=work,
            running=candidates.running[at],
            is_alone=ahead_s <= ALONE * own_s,
            own_s=own_s,
        )

    def __repr__(self) -> str:
        return f"<Placement of {self.request.id} on {self.engine.name}>"

    @property
    def charge(self) -> Charge:
        """What stands in the ledger for it."""
        return self._charge

    @property
    def handover(self) -> Handover | None:
        """What a pair's decode leg is told; None where the engine does its own prefill."""
        return None if self.prefill is None else self.prefill.handover

    def few(self) -> Few:
        """The candidates that a receipt shows. All others are let go: a stream may last, and engines are many."""
        if self._few is None:
            self._few = self._ballot.few()
            del self._ballot
        return self._few

    def moved(self, engine: Engine, now_s: float) -> None:
        """Whoever carries it had it served by another engine, which has begun to answer: charged there from now on.

        What comes of it is learned for that engine; how long its prefill took is not known: some was lost on the way.
        """
        learner, left, old = self._learner, self.engine, self._charge
        if old.released:
            return
        self.few()
        learner.index.retract(self._trace)
        learner.ledger.release(old, now_s)
        self.engine, self._is_moved = engine, True
        self._charge = learner.ledger.charge(
            engine.slot,
            prefill_tokens=0.0,
            prefill_s=0.0,
            kv_tokens=old.kv_tokens,
            sequences=old.sequences,
            now_s=now_s,
            pledge=old.pledge,
            queues=False,
        )
        self._trace = learner.index.put(engine.slot, self.request.prompt)
        if self.request.session:
            learner.sessions.put(self.request.session, engine.slot)
        if learner.voice is not None:
            learner.voice.ended(old)
            learner.voice.placed(self._charge, engine.name, self.request)
        if self.request.sight is not None:
            self.request.sight.watch.left()
            self.request.sight.watch.placed(engine.name)
        learner.recycle(left.slot)

    def first_token(self, now_s: float) -> None:
        """The engine has begun to answer: its prefill is done."""
        if self.first_token_s is not None:
            return
        self.first_token_s = now_s
        self.few()
        learner, took_s = self._learner, now_s - self.placed_s
        learner.ledger.prefill_done(self._charge, now_s)
        learner.index.computed(self._trace)
        work_tokens = 0.0
        if self.prefill is not None:
            self.prefill.handed_over(now_s)
        elif not self._is_moved:
            work_tokens = self._learn_prefill(took_s)
        if learner.voice is not None:
            learner.voice.first_token(self._charge, work_tokens, took_s)
        if self.request.sight is not None:
            self.request.sight.watch.computed()

    def _learn_prefill(self, took_s: float) -> float:
        """Learn from one's own prefill; returns the work it was."""
        costs, predicted, slot = self._learner.costs, self.predicted, self.engine.slot
        costs.observe_first_token(slot, predicted.work_tokens, took_s)
        if predicted.is_alone:
            cold_tokens = predicted.prompt_tokens - predicted.warm_tokens
            costs.observe_alone(slot, cold_tokens, predicted.prompt_tokens, took_s)
        return predicted.work_tokens

    def settle(self, usage: Usage | None, now_s: float, *, answer: bytes = b"", response_id: str | None = None) -> None:
        """The engine has answered in full. Learn from what it says the request took, and from the answer it now holds.

        `answer` is the canonical form of what was generated, as the next turn's prompt will contain it.
        """
        learner, slot = self._learner, self.engine.slot
        if usage is not None and self.prefill is not None:
            # What a pair's decode engine calls cached is what was held elsewhere, or moved.
            usage = replace(usage, cached_tokens=None)
        # An answer without a first token of its own (not streamed) still shows that the prompt was computed.
        learner.index.computed(self._trace)
        if response_id:
            learner.responses.put(response_id, slot)
        running = (self.predicted.running + learner.ledger.running[slot]) / 2
        decode_s = None if self.first_token_s is None else now_s - self.first_token_s
        # Of a response that continues another we see the newest part only, and the engine counts the whole.
        tells_warmth = usage is not None and usage.prompt_tokens and not self.request.continues
        grown = self.request.prompt.extended(answer) if tells_warmth and answer else None
        if usage is not None and tells_warmth:
            learn_warmth(learner, self.request.model, self._trace, usage, grown)
        if usage is not None and decode_s is not None:
            tokens = usage.completion_tokens // self.request.sequences - 1
            learner.costs.observe_decode(slot, running, tokens, decode_s)
        if usage is not None and self.request.sight is not None:
            self.request.sight.watch.answered(usage.prompt_tokens, usage.cached_tokens)
        if learner.voice is not None:
            word = Settled(
                self._charge.number,
                usage.prompt_tokens if usage and tells_warmth else 0,
                usage.cached_tokens if usage else None,
                usage.completion_tokens if usage else 0,
                grown.blocks[len(self.request.prompt.blocks) :] if grown else (),
                grown.size if grown else 0,
                key_of(response_id) if response_id else None,
                running,
                decode_s if usage else None,
            )
            learner.voice.settled(self._charge, word)

    def release(self, now_s: float) -> None:
        """The request has left the engine, however it ended. Safe to call again."""
        learner = self._learner
        if self.prefill is not None:
            self.prefill.release(now_s)
        if self.first_token_s is None:
            learner.index.retract(self._trace)
        learner.ledger.release(self._charge, now_s)
        if learner.voice is not None:
            learner.voice.ended(self._charge)
        if self.request.sight is not None:
            self.request.sight.watch.left()
        learner.recycle(self.engine.slot)


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
