"""Forwards what becomes of a looked-up request to the listener that came with its lookup.

Subscribed to a router only where a precise prefix index is consulted; other requests have no lookup and are skipped.
"""

from __future__ import annotations

from routing.ledger import Charge
from routing.observers import Settlement
from routing.pods import Engine
from routing.request import Request


class LookupNotifier:
    """Observes placements; keeps nothing."""

    __slots__ = ()

    name = "precise index"

    def placed(self, request: Request, engine: Engine, charge: Charge) -> None:
        if request.lookup is not None:
            request.lookup.listener.placed(engine.name)

    def first_token(self, request: Request, charge: Charge, work_tokens: float, took_s: float) -> None:
        if request.lookup is not None:
            request.lookup.listener.computed()

    def settled(self, request: Request, charge: Charge, settlement: Settlement) -> None:
        usage = settlement.usage
        if request.lookup is not None and usage is not None:
            request.lookup.listener.answered(usage.prompt_tokens, usage.cached_tokens)

    def ended(self, request: Request, charge: Charge) -> None:
        if request.lookup is not None:
            request.lookup.listener.left()
