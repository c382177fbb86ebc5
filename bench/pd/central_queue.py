"""A central prefill queue: a request gets its engines when one of them can begin it, not when it arrives.

The other way is the direct channel, which the gateway uses: engines are chosen at arrival, and requests wait at them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from gateway.pipeline.admission_queue import AdmissionQueue
from gateway.pipeline.request_context import RequestContext
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.facts import Role
from routing.ledger import Charge
from tenancy.objective import LatencyObjective

STEP_TOKENS = 8_192.0
"""Prefill that an engine takes into one step: with less in its queue it can begin another prompt."""


class CentralPrefillQueue(AdmissionQueue):
    """First in, first out, before engines of the role prefill."""

    def __init__(self, router: Router, clock: Callable[[], float], draw: Callable[[], float]) -> None:
        super().__init__(router, clock=clock, draw=draw)
        self._turns: deque[asyncio.Future[None]] = deque()
        router.ledger.attach(self)

    async def place(
        self,
        context: RequestContext,
        objective: LatencyObjective,
        avoid: frozenset[str],
        since_s: float,
        *,
        late_by_s: float | None = None,
    ) -> Placement:
        """Wait for its turn, then place it."""
        if self._turns or not self._has_room():
            turn = asyncio.get_running_loop().create_future()
            self._turns.append(turn)
            await turn
        placement = await super().place(context, objective, avoid, since_s, late_by_s=late_by_s)
        self._call_next()
        return placement

    def on_charged(self, charge: Charge, now_s: float) -> None:
        """Receive a charge: nothing becomes free."""

    def on_prefill_done(self, charge: Charge, now_s: float) -> None:
        """Receive the end of a prefill: an engine may have room."""
        if charge.queues:
            self._call_next()

    def on_released(self, charge: Charge, now_s: float) -> None:
        """Receive the end of a request."""

    def _has_room(self) -> bool:
        tokens = self._router.ledger.prefill_tokens
        engines = [engine for pod in self._router.fleet.pods for engine in pod.engines]
        return any(engine.role is Role.PREFILL and tokens[engine.slot] < STEP_TOKENS for engine in engines)

    def _call_next(self) -> None:
        while self._turns and self._turns[0].done():
            del self._turns[0]
        if self._turns and self._has_room():
            self._turns.popleft().set_result(None)
