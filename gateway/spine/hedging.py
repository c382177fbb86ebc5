"""A second engine asked beside one whose first token is late: whichever begins first answers, and the other ends.

Off unless the configuration and the tenant let it, under the budget of all second attempts, and never while requests
wait for engines. Only where a first token says something: of streams, and of requests that have no second token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from gateway.spine.carrier import Beside, Carrier, Leg, LegEnd
from gateway.spine.carrying import Carrying
from gateway.spine.journey import Journey
from gateway.spine.placing import Placing
from gateway.spine.room import Room
from routing.placement import Placement
from routing.receipt import Attempt
from routing.retries import Budget, RetryTerms, Try

LOOK_S = 0.05
"""How often it is looked whether the first has begun after all. Two at work for so much longer is of little matter."""

OUTRUN = "outrun"
"""How an attempt ended that was given up because another had begun: by nobody's fault."""

LEFT = "client_gone"
"""What it is called by whoever ends an attempt that nobody waits for."""

WON = ("request", "last", "leg", "begun_by", "held_s", "cuts", "cut_s", "resumed")
"""Of a journey, what its winner has made of it."""


@dataclass(frozen=True, slots=True)
class Second:
    """The second attempt: a journey of its own, until it wins."""

    journey: Journey
    carrier: Beside
    task: asyncio.Task[Leg]


class Hedging:
    """Carries requests, one engine at a time or two. Holds no request's state."""

    def __init__(self, placing: Placing, carrying: Carrying, room: Room, budget: Budget, terms: RetryTerms) -> None:
        self._placing = placing
        self._carrying = carrying
        self._room = room
        self._budget = budget
        self._terms = terms

    def may_hedge(self, journey: Journey, placement: Placement) -> bool:
        """Whether a second engine may be asked. Not for a pair, which has patience of its own; nor for what continues
        an answer, which is stored with one engine only.
        """
        if not self._terms.hedge:
            return False
        request = journey.request
        tells = request.stream or not request.api.generates
        is_one_of_its_own = placement.prefill is None and request.continues is None and not journey.cuts
        return tells and is_one_of_its_own and journey.caller.tenant.hedges

    async def carry(self, journey: Journey, placement: Placement, carrier: Carrier) -> tuple[Leg, Carrier]:
        """Carry what may be hedged as `Carrying` does; returns also who has carried it, for whatever comes next."""
        first = _begin(self._carrying.carry(journey, placement, carrier))
        try:
            await asyncio.wait({first}, timeout=self._terms.late_s(placement.predicted.ttft_s))
            if first.done() or placement.first_token_s is not None:
                return await first, carrier
            second = self._ask(journey, placement, carrier)
            if second is None:
                return await first, carrier
            return await self._race(journey, placement, carrier, first, second)
        finally:
            await _end(first)

    def _ask(self, journey: Journey, placement: Placement, carrier: Carrier) -> Second | None:
        """Ask a second one, where there may be one."""
        beside = None if self._room.is_crowded else carrier.beside()
        if beside is None or not self._budget.take(Try.HEDGE):
            return None
        own = Journey(journey.request, journey.caller, journey.promise, journey.trace, journey.started_s)
        own.avoid = journey.avoid | {placement.engine.pod}
        return Second(own, beside, _begin(self._place_and_carry(own, beside)))

    async def _place_and_carry(self, own: Journey, carrier: Carrier) -> Leg:
        return await self._carrying.carry(own, await self._placing.place(own), carrier)

    async def _race(
        self, journey: Journey, placement: Placement, carrier: Carrier, first: asyncio.Task[Leg], second: Second
    ) -> tuple[Leg, Carrier]:
        has_won = False
        try:
            while not (second.task.done() or second.carrier.begun.done() or _has_begun(placement, first)):
                racing: set[asyncio.Future[Any]] = {second.task, second.carrier.begun}
                if not first.done():
                    racing.add(first)
                await asyncio.wait(racing, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            has_won = second.carrier.begun.done() and second.carrier.take_over()
            if not has_won:
                return await first, carrier
            await _end(first)
            return await second.task, second.carrier
        except asyncio.CancelledError:
            # The client has gone, and with it the first one's connection: before that looks like the pod's doing.
            first.cancel()
            raise
        finally:
            await _end(second.task)
            _merge(journey, second.journey, placement, has_won=has_won)


def _has_begun(placement: Placement, first: asyncio.Task[Leg]) -> bool:
    """Whether the first is the client's: it has a token, or has ended as nobody need be asked after."""
    if placement.first_token_s is not None:
        return True
    return first.done() and (first.cancelled() or first.result().end is LegEnd.ANSWERED)


def _merge(journey: Journey, own: Journey, placement: Placement, *, has_won: bool) -> None:
    """One journey is left: the winner's part, all attempts, and what the other's engine may have computed in vain."""
    attempts = [replace(attempt, hedge=True) for attempt in own.attempts]
    loser = own.last
    if has_won:
        loser = placement
        journey.attempts[:] = map(_outrun, journey.attempts)
        for name in WON:
            setattr(journey, name, getattr(own, name))
        journey.avoid |= own.avoid
    else:
        attempts = [_outrun(attempt) for attempt in attempts]
    journey.attempts += attempts
    if loser is not None:
        journey.wasted_tokens += round(loser.predicted.prompt_tokens - loser.predicted.warm_tokens)
    journey.wasted_tokens += own.wasted_tokens


def _outrun(attempt: Attempt) -> Attempt:
    return replace(attempt, ended=OUTRUN) if attempt.ended == LEFT else attempt


def _begin(carried: Coroutine[Any, Any, Leg]) -> asyncio.Task[Leg]:
    return asyncio.get_running_loop().create_task(carried)


async def _end(task: asyncio.Task[Leg]) -> None:
    """Nothing of an attempt goes on after this, nor is its failure left unheard: a refusal that nobody is told."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
