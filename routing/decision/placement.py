"""A request on an engine: what was predicted, the three moments at which the router learns from it, and its receipt.

The frontend that serves the request calls it at these moments; time is an argument. `release` ends it in any case.
"""

from __future__ import annotations

from msgspec import Struct, UnsetType
from msgspec.structs import replace

from routing.canary.rollout import CanaryReason
from routing.candidates import CandidateShown, RoutingDecision, TopCandidates, predict
from routing.eligible import PairingFallback
from routing.facts import Role
from routing.ledger import LATE_FACTOR, Charge
from routing.observers import Settlement
from routing.pairing.prefill_side import DecodeHandover, PrefillPlacement
from routing.pods import Engine
from routing.prefix_index import CacheInsertion
from routing.request import Request, Usage
from routing.retries import FIRST
from routing.state import RoutingState


class Placement:
    """One request on one engine, from the choice to its end."""

    __slots__ = (
        "_decision",
        "_few",
        "_is_moved",
        "_is_surprising",
        "_state",
        "_trace",
        "canary",
        "candidate_count",
        "charge",
        "engine",
        "fallback",
        "first_token_s",
        "is_untimed",
        "placed_s",
        "predicted",
        "prefill",
        "request",
        "was_left",
    )

    def __init__(
        self,
        state: RoutingState,
        request: Request,
        engine: Engine,
        charge: Charge,
        trace: CacheInsertion,
        decision: RoutingDecision,
        *,
        prefill: PrefillPlacement | None = None,
        fallback: PairingFallback | None = None,
    ) -> None:
        """`prefill` is the other side of a pair; without it the engine does its own prefill. `fallback` says why it is
        no pair where it should be one.
        """
        candidates, at = decision.candidates, decision.at
        self._state = state
        self.charge = charge
        """Its entry in the ledger."""
        self._trace = trace
        self.request = request
        self.engine = engine
        self.prefill = prefill
        self.fallback = fallback
        self._decision = decision
        self._few: TopCandidates | None = None
        self.candidate_count = candidates.engines_in_all or len(candidates.engines)
        self.placed_s = candidates.now_s
        self.first_token_s: float | None = None
        self._is_moved = False
        self._is_surprising = False
        self.canary: CanaryReason | None = None
        """Why it is on a canary's pod or was kept from one; None where no canary had a part in it."""
        self.was_left = False
        """Its client did not wait for the end of its answer."""
        self.is_untimed = request.is_beam_search
        """How long its answer took teaches nothing: its client read too slowly, or its engine keeps it to the end."""
        self.predicted = predict(candidates, at)

    def __repr__(self) -> str:
        return f"<Placement of {self.request.id} on {self.engine.name}>"

    @property
    def handover(self) -> DecodeHandover | None:
        """What the decode engine of a pair is sent; None where the engine does its own prefill."""
        return None if self.prefill is None else self.prefill.handover

    def top_candidates(self) -> TopCandidates:
        """The candidates that a receipt shows. All others are let go: a stream may last, and engines are many."""
        if self._few is None:
            self._few = self._decision.top()
            del self._decision
        return self._few

    def move(self, engine: Engine, now_s: float) -> None:
        """Another engine has begun to answer it (Envoy chose one of several): charge it there from now on.

        What comes of it is learned for that engine; how long its prefill took is not known: some was lost on the way.
        """
        state, left, old = self._state, self.engine, self.charge
        if old.released:
            return
        self.top_candidates()
        state.index.retract(self._trace)
        state.ledger.release(old, now_s)
        self.engine, self._is_moved, self._is_surprising = engine, True, False
        self.charge = state.ledger.charge(
            engine.slot,
            prefill_tokens=0.0,
            prefill_s=0.0,
            kv_tokens=old.kv_tokens,
            sequences=old.sequences,
            now_s=now_s,
            pledge=old.objective,
            queues=False,
        )
        self._trace = state.index.insert(engine.slot, self.request.prompt)
        if self.request.session:
            state.sessions.put(self.request.session, engine.slot)
        if state.observers is not None:
            state.observers.ended(self.request, old)
            state.observers.placed(self.request, engine, self.charge)
        state.recycle(left.slot)

    def first_token(self, now_s: float) -> None:
        """The engine has begun to answer: its prefill is done."""
        if self.first_token_s is not None:
            return
        self.first_token_s = now_s
        self.top_candidates()
        state, took_s = self._state, now_s - self.placed_s
        state.ledger.prefill_done(self.charge, now_s)
        state.index.prefill_done(self._trace)
        work_tokens = 0.0
        if self.prefill is not None:
            self.prefill.transfer_done(now_s)
        elif not self._is_moved and self._teaches_times:
            work_tokens = self._learn_prefill(took_s)
        if state.observers is not None:
            state.observers.first_token(self.request, self.charge, work_tokens, took_s)

    def _learn_prefill(self, took_s: float) -> float:
        """Learn what the prefill took. Return its work in tokens; 0 where that teaches nothing, or not yet.

        A time that is far from what was predicted is most often that of another prefill: less was cached than believed,
        or more. It is learned when the engine has said how much.
        """
        costs, predicted, charge = self._state.costs, self.predicted, self.charge
        if costs.knows_prefill:
            expected_s = predicted.ttft_s + charge.unseen_tokens * costs.seconds_per_token[charge.slot]
            self._is_surprising = not expected_s < LATE_FACTOR * took_s < LATE_FACTOR * LATE_FACTOR * expected_s
            if self._is_surprising or charge.is_delayed:
                return 0.0
        work_tokens = predicted.work_tokens + charge.unseen_tokens
        self._observe_prefill(work_tokens, predicted.cached_tokens, took_s)
        return work_tokens

    def _observe_prefill(self, work_tokens: float, cached_tokens: float, took_s: float) -> None:
        costs, predicted, slot = self._state.costs, self.predicted, self.charge.slot
        costs.observe_first_token(slot, work_tokens, took_s)
        if predicted.is_alone:
            costs.observe_alone(slot, predicted.prompt_tokens - cached_tokens, predicted.prompt_tokens, took_s)

    def settle(self, usage: Usage | None, now_s: float, *, answer: bytes = b"", response_id: str | None = None) -> None:
        """The engine has answered in full. Learn from what it says the request took, and from the answer it now holds.

        `answer` is the canonical form of what was generated, as the next turn's prompt will contain it.
        """
        state, slot = self._state, self.engine.slot
        if self.charge.released and not state.is_in_slot(self.engine):
            return  # It was let go, its pod has gone since, and another may be in its slot.
        if usage is not None and self.prefill is not None:
            # What a pair's decode engine calls cached is what was held elsewhere, or moved.
            usage = replace(usage, cached_tokens=None)
        if self.first_token_s is None:  # The response was not streamed: still a sign that the prompt was computed.
            state.index.prefill_done(self._trace)
        if response_id:
            state.responses.put(response_id, slot, self.request.tenant)
        running = (self.predicted.running + state.ledger.in_step(slot, state.ledger.all_running)) / 2
        decode_s = None if self.first_token_s is None else now_s - self.first_token_s
        # Of a response that continues another we see the newest part only, and the engine counts the whole.
        shows_hits = usage is not None and usage.prompt_tokens and not self.request.continues
        grown = self.request.prompt.extended(answer) if shows_hits and answer else None
        self._learn_surprise(usage if shows_hits else None)
        if usage is not None and shows_hits:
            if not self.request.shows_cache:
                usage = replace(usage, cached_tokens=None)
            state.learn_usage(self.request.model, self._trace, usage, grown, self.request)
        if not self._teaches_times:
            decode_s = None
        if usage is not None and decode_s is not None:
            self._learn_decode(usage, running, decode_s, now_s)
        if state.observers is not None:
            counts_prompt = bool(shows_hits) and self.request.counts_text
            settlement = Settlement(usage, counts_prompt, grown, response_id, running, decode_s)
            state.observers.settled(self.request, self.charge, settlement)

    @property
    def _teaches_times(self) -> bool:
        """Whether what it took says something of its engine: not where requests of missing peers may have run beside
        it.
        """
        state = self._state
        return not self.is_untimed and state.peers_missing_s is None and self.placed_s >= state.peers_found_s

    def _learn_surprise(self, usage: Usage | None) -> None:
        """Learn a surprising first token, with what usage says was cached."""
        if not self._is_surprising or self.charge.is_delayed or self.first_token_s is None:
            return
        held = self.predicted.held(usage)
        work_tokens = self.predicted.work_with(held, self._state.costs.growth.per_token) + self.charge.unseen_tokens
        self._observe_prefill(work_tokens, held, self.first_token_s - self.placed_s)

    def _learn_decode(self, usage: Usage, running: float, decode_s: float, now_s: float) -> None:
        state, slot = self._state, self.engine.slot
        tokens = usage.completion_tokens // self.request.sequences - 1
        state.costs.observe_decode(slot, running, tokens, decode_s)
        if self.prefill is not None:
            stalled_s = state.ledger.stalled_since(self.charge, now_s)
            state.decode_pace.observe(slot, running, tokens, decode_s, stalled_s=stalled_s)

    def let_go(self, now_s: float) -> None:
        """Release its load before its response ends: it is read so slowly that the engine has completed it by now."""
        self.is_untimed = True
        if self.first_token_s is not None:
            self._state.ledger.release(self.charge, now_s)
            if self._state.observers is not None:
                self._state.observers.ended(self.request, self.charge)

    def release(self, now_s: float) -> None:
        """The request has left the engine, however it ended. Safe to call again."""
        state = self._state
        try:
            if self.prefill is not None:
                self.prefill.release(now_s)
            if self.first_token_s is None:
                state.index.retract(self._trace)
        finally:
            state.ledger.release(self.charge, now_s)
        if state.observers is not None:
            state.observers.ended(self.request, self.charge)
        if state.retired:
            state.recycle(self.engine.slot)


PRECISE, APPROXIMATE = "precise", "approximate"
"""Indexes of cached tokens."""


class AttemptReceipt(Struct, frozen=True, gc=False):
    """One engine that was tried, in the order of trying."""

    engine: str
    result: str
    candidates: TopCandidates | tuple[CandidateShown, ...]
    """The best of them; written out where they are to be read."""
    candidate_count: int
    predicted_input_tokens: int
    predicted_cached_input_tokens: int
    actual_cached_input_tokens: int | None
    predicted_ttft_s: float
    actual_ttft_s: float | None
    cache_source: str = APPROXIMATE
    """What predicted the cached tokens: the engine's own events (precise), or what was sent to it (approximate)."""
    prefill_engine: str | None = None
    """The engine that did, or was to do, the prefill, where that was another. All cached tokens are then that
    engine's."""
    connector: str | None = None
    """How the one hands KV over to the other."""
    prefill_s: float | None = None
    """From the choice to the prefill engine's answer."""
    predicted_transfer_s: float | None = None
    actual_transfer_s: float | None = None
    """From that answer to the first token."""
    fallback_reason: PairingFallback | None = None
    """Why no pair was chosen although one was required, or why its KV transfer failed."""
    was_unhealthy: bool = False
    """Its pod had failed other requests before, and has completed none since."""
    kind: str = FIRST
    """`FIRST`, `ESCALATION`, or the `RetryKind` of an attempt that follows a failed one."""
    role: str = Role.EITHER.value
    """Role of the engine when the attempt ended."""
    model: str = ""
    """The model that was asked."""
    start_s: float = 0.0
    """From the request's arrival to this choice."""
    duration_s: float = 0.0
    """From this choice to the attempt's end."""
    canary: CanaryReason | UnsetType | None = None
    """Why a canary's pod was chosen or left out; None, or unset where it is shown, if no canary had a part in that."""


def attempt_receipt(
    placement: Placement,
    result: str,
    usage: Usage | None,
    fallback: PairingFallback | None = None,
    *,
    was_unhealthy: bool = False,
    kind: str = FIRST,
    arrived_s: float | None = None,
    ended_s: float | None = None,
) -> AttemptReceipt:
    """Return the receipt's line for one placement that has ended.

    `arrived_s`, `ended_s`: when its request arrived and the attempt ended, in loop time; by default when it was placed.
    """
    predicted, side, lookup = placement.predicted, placement.prefill, placement.request.lookup
    is_precise = lookup is not None and placement.engine.slot in lookup.reliable_slots
    first = placement.first_token_s
    return AttemptReceipt(
        engine=placement.engine.name,
        result=result,
        candidates=placement.top_candidates(),
        candidate_count=placement.candidate_count,
        predicted_input_tokens=round(predicted.prompt_tokens),
        predicted_cached_input_tokens=round(predicted.cached_tokens),
        actual_cached_input_tokens=usage.cached_tokens if usage else None,
        predicted_ttft_s=predicted.ttft_s,
        actual_ttft_s=None if first is None else first - placement.placed_s,
        cache_source=PRECISE if is_precise else APPROXIMATE,
        prefill_engine=None if side is None else side.engine.name,
        connector=None if side is None else side.transfer.name,
        prefill_s=None if side is None else side.took_s,
        predicted_transfer_s=None if side is None else side.transfer.seconds,
        actual_transfer_s=None if side is None else side.transfer_s,
        fallback_reason=fallback,
        was_unhealthy=was_unhealthy,
        kind=kind,
        role=placement.engine.role.value,
        model=placement.request.model,
        start_s=0.0 if arrived_s is None else placement.placed_s - arrived_s,
        duration_s=0.0 if ended_s is None else ended_s - placement.placed_s,
        canary=placement.canary,
    )
