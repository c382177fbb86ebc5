"""The next rung of a ladder, begun while the answer of the one below is in doubt: for a client that then waits less.

A journey of its own beside the request's, carried by a carrier of its own. If the rung below is kept, it is given up
and its pod told at once; if not, it takes the request over where it stands. Knows not when an answer is in doubt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Self

from msgspec.structs import replace

from gateway.ladders.ahead import Ahead
from gateway.ladders.climb import Climb
from gateway.ladders.climbed import GIVEN_UP
from gateway.spine.carrier import Beside, Leg, LegEnd
from gateway.spine.carrying import Carrying
from gateway.spine.journey import Journey
from gateway.spine.placing import Placing
from routing.receipt import Attempt
from routing.request import Request

IN_USE = frozenset({LegEnd.ANSWERED, LegEnd.UNCONVINCING})
"""How an answer may have ended already that is to be the client's."""

CLIENT_GONE = "client_gone"


class Early:
    """Of one request; at most one rung of it is begun early. Ends what it has begun, whatever happens."""

    def __init__(
        self,
        placing: Placing,
        carrying: Carrying,
        journey: Journey,
        climb: Climb,
        look: Callable[[Request], Awaitable[Request]] | None,
    ) -> None:
        self.carrier: Beside | None = None
        """Who carries the request from the rung on that was begun early."""
        self._placing = placing
        self._carrying = carrying
        self._journey = journey
        self._climb = climb
        self._look = look
        self._ahead: Ahead | None = None
        self._own: Journey | None = None
        self._task: asyncio.Task[Leg] | None = None
        self._is_over = False
        """It was given up, or has taken over."""
        self._is_adopted = False
        self._taken_s = 0.0

    async def __aenter__(self) -> Self:
        self._climb.hedge = self
        return self

    async def __aexit__(self, *_: object) -> None:
        self._climb.hedge = None
        self.give_up()
        if self._task is not None and self._own is not None and not self._is_adopted:
            await asyncio.wait([self._task])
            self._journey.attempts[:0] = map(_named, self._own.attempts)

    # -- as a judge sees it ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The answer below is in doubt: ask for the next one."""
        ahead = self._climb.ahead() if self._task is None else None
        if ahead is None:
            return
        journey = self._journey
        self._ahead = ahead
        self._own = own = Journey(ahead.request, journey.caller, journey.promise, journey.trace, journey.started_s)
        self._task = asyncio.get_running_loop().create_task(self._carry(own, ahead))

    def give_up(self) -> None:
        """The answer below was kept, or nobody waits any more."""
        if self._task is None or self._ahead is None or self._is_over:
            return
        self._is_over = True
        if not self._task.cancel() and not self._task.cancelled():
            self._task.exception()  # Whatever it was, it is nobody's any more.
        self._climb.gave_up(self._ahead, self._own.last if self._own else None)

    # -- as the spine sees it --------------------------------------------------------------------------------------

    def takes_over(self) -> bool:
        """Whether the rung that is asked now was begun already and is the client's from here on."""
        ahead = self._ahead
        if ahead is None or self._is_over:
            return False
        if ahead.at != self._climb.at or not self._is_of_use() or not ahead.carrier.take_over():
            self.give_up()
            return False
        self._is_over = self._is_adopted = True
        self.carrier = ahead.carrier
        self._climb.adopt(ahead)
        self._taken_s = asyncio.get_running_loop().time()
        return True

    def seen_through(self) -> Coroutine[None, None, Leg] | None:
        """How the attempt ends that took over; None where there is none, and ever after."""
        if not self._is_adopted or self._task is None or self._own is None:
            return None
        task, self._task = self._task, None
        return self._see_through(task, self._own)

    async def _see_through(self, task: asyncio.Task[Leg], own: Journey) -> Leg:
        try:
            return await task
        finally:
            self._merge(own)

    async def _carry(self, own: Journey, ahead: Ahead) -> Leg:
        if self._look is not None:
            own.request = await self._look(own.request)
        try:
            placement = await self._placing.place(own)
            ahead.carrier.judged_by(ahead.judge)
            return await self._carrying.carry(own, placement, ahead.carrier)
        finally:
            if not self._is_adopted and own.request.sight is not None:
                own.request.sight.watch.over()

    def _is_of_use(self) -> bool:
        task = self._task
        if task is None or not task.done():
            return task is not None
        return not task.cancelled() and task.exception() is None and task.result().end in IN_USE

    def _merge(self, own: Journey) -> None:
        """What the other journey has come to is what the request's own has come to."""
        journey = self._journey
        journey.attempts += own.attempts
        journey.avoid |= own.avoid
        for name in ("request", "promise", "last", "leg", "begun_by", "cuts", "cut_s", "resumed", "wasted_tokens"):
            setattr(journey, name, getattr(own, name))
        began_s = own.last.first_token_s if own.last else None
        journey.held_s = own.held_s + max(0.0, self._taken_s - began_s) if began_s is not None else own.held_s


def _named(attempt: Attempt) -> Attempt:
    """Who left it was nobody's client."""
    return replace(attempt, ended=GIVEN_UP) if attempt.ended == CLIENT_GONE else attempt
