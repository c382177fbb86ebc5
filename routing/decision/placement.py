"""A request on an engine: what was predicted, and the three moments at which the router learns from it.

The shell that carries the request tells the moments; time is an argument. Whatever happens, `release` ends it.
"""

from __future__ import annotations

from msgspec.structs import replace

from routing.affinity import key_of
from routing.candidates import Ballot, Few
from routing.eligible import Fallback
from routing.learning import ALONE, Learner, Prediction, Usage, learn_warmth
from routing.ledger import Charge
from routing.pairing.prefill_side import Handover, PrefillSide
from routing.pods import Engine
from routing.prefix_index import Trace
from routing.replica_state import Settled
from routing.request import Request


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
        try:
            if self.prefill is not None:
                self.prefill.release(now_s)
            if self.first_token_s is None:
                learner.index.retract(self._trace)
        finally:
            learner.ledger.release(self._charge, now_s)
        if learner.voice is not None:
            learner.voice.ended(self._charge)
        if self.request.sight is not None:
            self.request.sight.watch.left()
        learner.recycle(self.engine.slot)
