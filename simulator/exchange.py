"""News between routers in virtual time: what one says the others hear a while later, or never.

Stands where workers, warmth processes and Redis stand in production; routers, words and hearing are the real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from routing.decision.router import Router
from routing.replica_state import ReplicaState, StateUpdate, UpdatePublisher

SPACING_S = 0.002
"""Between two batches of a router; the first word after a silence goes out at once. As a worker does it."""

STATE_S = 2.0
"""How often a router states what it has open, where news can be lost."""

SILENT_S = 5.0
"""Who was not heard for so long is forgotten, where news can be lost."""


@dataclass(slots=True)
class Member:
    """One router of the exchange."""

    name: int
    router: Router
    voice: UpdatePublisher
    hearing: ReplicaState
    batches: int = 0
    stated_s: float = 0.0
    sent_s: float = -1.0


class Exchange:
    """Joins routers that share pods. Made on the loop whose clock is the routers'."""

    def __init__(self, *, delay_s: float = 0.02, loss: float = 0.0, draw: Callable[[], float] = lambda: 1.0) -> None:
        """`delay_s`: from a batch's end until it is heard; `loss`: the share of batches that a hearer never gets, by
        `draw` in [0, 1).
        """
        self.delay_s = delay_s
        self.loss = loss
        self.batches = 0
        self.words = 0
        self._draw = draw
        self._loop = asyncio.get_running_loop()
        self._members: list[Member] = []
        self._held: list[Callable[[], None]] | None = None

    def join(self, router: Router) -> ReplicaState:
        """Have a router tell and hear. Returns what it hears with."""
        name = len(self._members)
        voice = UpdatePublisher(lambda: self._wake(name))
        router.subscribe(voice)
        member = Member(name, router, voice, ReplicaState(router))
        self._members.append(member)
        for each in self._members:
            each.router.replica_position = each.name, len(self._members)
        return member.hearing

    def cut(self) -> None:
        """What is between them is away: everybody goes on alone, and what is said is kept."""
        self._held = []
        for member in self._members:
            for other in self._members:
                member.hearing.remove(other.name, self._loop.time())

    def mend(self) -> None:
        """It is back: all that was said meanwhile is heard, in order."""
        held, self._held = self._held or (), None
        for deliver in held:
            deliver()

    def _wake(self, name: int) -> None:
        member = self._members[name]
        self._loop.call_at(max(self._loop.time(), member.sent_s + SPACING_S), self._send, member)

    def _send(self, member: Member) -> None:
        now_s = member.sent_s = self._loop.time()
        if self.loss and now_s - member.stated_s >= STATE_S:
            member.stated_s = now_s
            member.voice.publish_snapshot()
        news = member.voice.take()
        member.batches += 1
        self.batches += 1
        self.words += len(news)
        deliver = partial(self._deliver, member, member.batches, news)
        if self._held is None:
            deliver()
        else:
            self._held.append(deliver)

    def _deliver(self, member: Member, number: int, news: list[StateUpdate]) -> None:
        for other in self._members:
            if other is not member and not (self.loss and self._draw() < self.loss):
                self._loop.call_later(self.delay_s, self._tell, other, member, number, news)

    def _tell(self, other: Member, member: Member, number: int, news: list[StateUpdate]) -> None:
        now_s = self._loop.time()
        is_whole = other.hearing.apply(member.name, number, news, now_s)
        if self.loss:
            other.hearing.remove_stale(now_s - SILENT_S, now_s)
        if not is_whole and now_s - member.stated_s > self.delay_s:
            member.stated_s = now_s
            self._loop.call_later(self.delay_s, member.voice.publish_snapshot)

    async def settle(self) -> None:
        """Wait until everybody has heard, without loss, what everybody has open."""
        self.loss = 0.0
        for member in self._members:
            member.voice.publish_snapshot()
        await asyncio.sleep(2 * (SPACING_S + self.delay_s))
