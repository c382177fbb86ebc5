"""The prefill engine of a pair: what was charged there, and the moments at which the router learns from it.

Ends with its placement at the latest. Time is an argument; how the legs are carried is not known here.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from routing.candidates import Prediction
from routing.connectors.shape import Connector
from routing.ledger import Charge
from routing.observers import Settlement
from routing.pairing.links import FIXED_S, Link, TransferCosts
from routing.pods import Engine
from routing.prefix_index import CacheInsertion
from routing.request import Request, Usage
from routing.state import RoutingState


class PredictedTransfer(Struct, frozen=True, gc=False):
    """What is predicted of one KV transfer."""

    connector: Connector
    link: Link
    tokens: float
    """That the decode engine does not hold already."""
    prior_s: float
    """By bytes and bandwidth alone."""
    seconds: float
    """As learned, behind what the engines' network cards have to transfer before."""
    timeout_s: float
    """Seconds after which the transfer counts as stalled."""
    wait_s: float = 0.0
    """Part of `seconds` for which it waits for the cards."""
    step_s: float = 0.0
    """Seconds at the decode engine beside it: the queue there, and a step."""

    @property
    def occupied_s(self) -> float:
        """Return the seconds for which it occupies the cards: all but what is the same for any size."""
        return (self.seconds - self.wait_s) * max(0.0, 1 - FIXED_S / self.prior_s)

    def behind(self, wait_s: float) -> PredictedTransfer:
        """Return the same transfer, which first waits for the cards."""
        if not wait_s:
            return self
        return replace(self, seconds=self.seconds + wait_s, timeout_s=self.timeout_s + wait_s, wait_s=wait_s)

    @property
    def name(self) -> str:
        """The connector's, for receipts and for what is learned."""
        return self.connector.terms.names[0]


class DecodeHandover(Struct, frozen=True, gc=False):
    """What the decode leg is sent beside the client's own body."""

    request_id: str
    fields: bytes = b""
    """`kv_transfer_params` as JSON; empty where there are none."""


class PrefillPlacement:
    """One prefill leg, from the choice to its end."""

    __slots__ = (
        "_charge",
        "_decode_slot",
        "_has_left",
        "_is_under_way",
        "_is_unseen",
        "_state",
        "_trace",
        "_transfers",
        "cached_tokens",
        "done_s",
        "engine",
        "handover",
        "placed_s",
        "predicted",
        "request",
        "transfer",
        "transfer_s",
    )

    def __init__(
        self,
        state: RoutingState,
        transfers: TransferCosts,
        request: Request,
        engine: Engine,
        charge: Charge,
        trace: CacheInsertion,
        predicted: Prediction,
        transfer: PredictedTransfer,
        *,
        decode_slot: int,
        placed_s: float,
    ) -> None:
        self._state = state
        self._transfers = transfers
        self._charge = charge
        self._trace = trace
        self._decode_slot = decode_slot
        self._has_left = False
        self.request = request
        self.engine = engine
        self.predicted = predicted
        self.transfer = transfer
        self.placed_s = placed_s
        self.done_s: float | None = None
        self.handover: DecodeHandover | None = None
        self.cached_tokens: int | None = None
        """What the engine says it held of the prompt already."""
        self._is_under_way = self._is_unseen = False
        self.transfer_s: float | None = None
        """From its answer to the first token of the decode engine."""

    def __repr__(self) -> str:
        return f"<PrefillPlacement of {self.request.id} on {self.engine.name}>"

    @property
    def charge(self) -> Charge:
        """Its entry in the ledger."""
        return self._charge

    @property
    def took_s(self) -> float | None:
        """How long its leg took, None before its answer."""
        return None if self.done_s is None else self.done_s - self.placed_s

    def prefill_done(self, usage: Usage | None, now_s: float) -> None:
        """The engine has computed the prompt. Learn what that took, and what it held before."""
        if self.done_s is not None or self._has_left:
            return
        self.done_s, self._is_under_way = now_s, True
        self._transfers.under_way.begin(self.engine.slot, self._decode_slot, self.transfer.occupied_s)
        state, predicted, slot = self._state, self.predicted, self.engine.slot
        took_s = now_s - self.placed_s
        state.ledger.prefill_done(self._charge, now_s)
        state.index.prefill_done(self._trace)
        held = predicted.held(usage)
        work_tokens = 0.0 if self._charge.is_delayed else predicted.work_with(held, state.costs.growth.per_token)
        if work_tokens > 0:
            state.costs.observe_first_token(slot, work_tokens, took_s)
        if predicted.is_alone:
            state.costs.observe_alone(slot, predicted.prompt_tokens - held, predicted.prompt_tokens, took_s)
        if state.observers is not None:
            state.observers.first_token(self.request, self._charge, work_tokens, took_s)
        if usage is not None and usage.prompt_tokens:
            self._learn(usage)
        if not self.request.stream:
            # A response that is not streamed has no visible first token. Its KV is fetched well before its end: as load
            # it counts no more, but a drained pod must not be ended yet.
            self._transfers.begin_unseen(self.engine.name)
            self._is_unseen = True
            self._end_charge(now_s)

    def transfer_done(self, now_s: float) -> None:
        """The decode engine has begun to answer: it has the KV, and this engine may forget it."""
        if self.transfer_s is None and self.done_s is not None:
            transfer, slots = self.transfer, (self.engine.slot, self._decode_slot)
            self.transfer_s = now_s - self.done_s
            if transfer.tokens > 0:
                moved_s = self.transfer_s - transfer.step_s - transfer.wait_s
                self._transfers.observe(transfer.link, transfer.name, transfer.prior_s, moved_s)
            self._transfers.clear_penalty(slots)
        self.release(now_s)

    def transfer_stalled(self, now_s: float) -> None:
        """The hand-over was given up."""
        waited_s = now_s - (self.done_s or self.placed_s)
        self._transfers.penalise((self.engine.slot, self._decode_slot), waited_s, now_s)

    def release(self, now_s: float) -> None:
        """Nothing of the request is left on the engine, however that came. Safe to call again."""
        if self._is_unseen:
            self._is_unseen = False
            self._transfers.end_unseen(self.engine.name)
        self._end_charge(now_s)

    def _end_charge(self, now_s: float) -> None:
        if self._has_left:
            return
        self._has_left = True
        state = self._state
        if self._is_under_way:
            self._transfers.under_way.end(self.engine.slot, self._decode_slot, self.transfer.occupied_s)
        if self.done_s is None:
            state.index.retract(self._trace)
        state.ledger.release(self._charge, now_s)
        if state.observers is not None:
            state.observers.ended(self.request, self._charge)
        state.recycle(self.engine.slot)

    def _learn(self, usage: Usage) -> None:
        state, request = self._state, self.request
        self.cached_tokens = usage.cached_tokens
        if not request.shows_cache:
            usage = replace(usage, cached_tokens=None)
        state.learn_usage(request.model, self._trace, usage, None, request)
        if state.observers is not None:
            prompt_alone = Usage(usage.prompt_tokens, cached_tokens=usage.cached_tokens)
            state.observers.settled(request, self._charge, Settlement(prompt_alone, request.counts_text))
