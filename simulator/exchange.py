"""Updates between routers in virtual time: each is received by the others after a delay, or never.

Replaces workers, index processes and Redis of production; routers, updates and their application are the real ones.
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
"""A replica without updates for this long is removed, where updates can be lost."""


@dataclass(slots=True)
class Member:
    """One router of the exchange."""

    name: int
    router: Router
    publisher: UpdatePublisher
    applier: ReplicaState
    batches: int = 0
    stated_s: float = 0.0
    sent_s: float = -1.0


class Exchange:
    """Joins routers that share pods. Made on the loop whose clock is the routers'."""

    def __init__(self, *, delay_s: float = 0.02, loss: float = 0.0, draw: Callable[[], float] = lambda: 1.0) -> None:
        """`delay_s`: from a batch's end until it is received; `loss`: the share of batches that are lost, by
        `draw` in [0, 1).
        """
        self.delay_s = delay_s
        self.loss = loss
        self.batches = 0
        self.updates = 0
        self._draw = draw
        self._loop = asyncio.get_running_loop()
        self._members: list[Member] = []
        self._held: list[Callable[[], None]] | None = None

    def join(self, router: Router) -> ReplicaState:
        """Have a router tell and hear. Returns what it hears with."""
        name = len(self._members)
        publisher = UpdatePublisher(lambda: self._wake(name))
        router.subscribe(publisher)
        member = Member(name, router, publisher, ReplicaState(router))
        self._members.append(member)
        for each in self._members:
            each.router.replica_position = each.name, len(self._members)
        return member.applier

    def cut(self) -> None:
        """Cut the connection: every replica goes on alone, and updates are kept."""
        self._held = []
        for member in self._members:
            for other in self._members:
                member.applier.remove(other.name, self._loop.time())

    def mend(self) -> None:
        """Restore the connection: the kept updates are delivered, in order."""
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
            member.publisher.publish_snapshot()
        batch = member.publisher.take()
        member.batches += 1
        self.batches += 1
        self.updates += len(batch)
        deliver = partial(self._deliver, member, member.batches, batch)
        if self._held is None:
            deliver()
        else:
            self._held.append(deliver)

    def _deliver(self, member: Member, number: int, batch: list[StateUpdate]) -> None:
        for other in self._members:
            if other is not member and not (self.loss and self._draw() < self.loss):
                self._loop.call_later(self.delay_s, self._apply_batch, other, member, number, batch)

    def _apply_batch(self, other: Member, member: Member, number: int, batch: list[StateUpdate]) -> None:
        now_s = self._loop.time()
        is_contiguous = other.applier.apply(member.name, number, batch, now_s)
        if self.loss:
            other.applier.remove_stale(now_s - SILENT_S, now_s)
        if not is_contiguous and now_s - member.stated_s > self.delay_s:
            member.stated_s = now_s
            self._loop.call_later(self.delay_s, member.publisher.publish_snapshot)

    async def settle(self) -> None:
        """Wait until everybody has heard, without loss, what everybody has open."""
        self.loss = 0.0
        for member in self._members:
            member.publisher.publish_snapshot()
        await asyncio.sleep(2 * (SPACING_S + self.delay_s))
