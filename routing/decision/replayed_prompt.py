"""A prompt that is sent to one engine so that it holds it, beside clients' requests: charged and indexed as they are.

Other gateways receive it as they receive a request: they count its load and know afterwards that the engine holds it.
Teaches nothing of speed: an engine with one prompt differs from one that serves.
"""

from __future__ import annotations

from routing.pods import Engine
from routing.request import Request
from routing.state import RoutingState


class ReplayedPrompt:
    """One replay, from its charge to its end."""

    def __init__(self, state: RoutingState, request: Request, engine: Engine, tokens: float, now_s: float) -> None:
        """Charge the engine with a prompt of so many uncached tokens."""
        self._state = state
        self._request = request
        self._engine = engine
        self._charge = state.ledger.charge(
            engine.slot,
            prefill_tokens=tokens,
            prefill_s=tokens * state.costs.seconds_per_token[engine.slot],
            kv_tokens=tokens,
            sequences=1,
            now_s=now_s,
        )
        self._trace = state.index.insert(engine.slot, request.prompt)
        if state.observers is not None:
            state.observers.placed(request, engine, self._charge)

    def end(self, now_s: float, *, is_computed: bool) -> None:
        """Release the charge. `is_computed`: the engine has answered, and holds the prompt."""
        state = self._state
        if is_computed:
            state.index.prefill_done(self._trace)
            if state.observers is not None:
                state.observers.first_token(self._request, self._charge, 0.0, 0.0)
        else:
            state.index.retract(self._trace)
        state.ledger.release(self._charge, now_s)
        if state.observers is not None:
            state.observers.ended(self._request, self._charge)
        if state.retired:
            state.recycle(self._engine.slot)
