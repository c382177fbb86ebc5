"""Holds prefill back while the decode engine has no room for the KV that it would be sent.

Without it, KV that was computed waits at the prefill engine until streams end, takes its room from other prompts, and
is lost when the connector's lease ends. Holds in the order of arrival, whether or not tenants have objectives: what
those may start is decided before, by admission. Of several gateways each counts what came to others before its own
first one, and not what came after: else all would wait for each other at an idle engine.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from routing.ledger import Charge, Ledger

MAX_HELD_S = 30.0
"""A request is held no longer: the engine's own queue may know better."""

LOOK_S = 0.25
"""How often the first of those held looks for room, beside the moments at which streams end here."""


class DecodeRoom:
    """One per gateway process."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._held: dict[int, deque[tuple[Charge, asyncio.Event]]] = {}

    def __repr__(self) -> str:
        return f"<DecodeRoom {sum(map(len, self._held.values()))} held>"

    async def enter(self, charge: Charge, capacity_tokens: float, by_s: float) -> None:
        """Wait until a decode engine has room for a charge beside what was let through, at most until `by_s`.

        An engine that holds nothing has room for any request.
        """
        if charge.slot not in self._held and self._fits(charge, (charge,), capacity_tokens):
            return
        held, by_s = (charge, asyncio.Event()), min(by_s, self._clock() + MAX_HELD_S)
        queue = self._held.setdefault(charge.slot, deque())
        queue.append(held)
        try:
            while (left_s := by_s - self._clock()) > 0:
                if queue[0] is held and self._fits(charge, (each for each, _ in queue), capacity_tokens):
                    return
                held[1].clear()
                try:
                    async with asyncio.timeout(min(left_s, LOOK_S) if queue[0] is held else left_s):
                        await held[1].wait()
                except TimeoutError:
                    continue
        finally:
            queue.remove(held)
            if queue:
                queue[0][1].set()
            else:
                del self._held[charge.slot]

    def ended(self, slot: int) -> None:
        """Note that a stream has ended on an engine: the first of those held there looks again."""
        if slot in self._held:
            self._held[slot][0][1].set()

    def _fits(self, first: Charge, held: Iterable[Charge], capacity_tokens: float) -> bool:
        """Return whether an engine has room for the first of those held, the others of which do not count."""
        there = self._ledger.all_kv_tokens[first.slot] - sum(charge.kv_tokens for charge in held)
        there -= self._ledger.expected_kv_tokens(first.slot, first)
        return there <= 0 or there + first.kv_tokens <= capacity_tokens
