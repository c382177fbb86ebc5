"""Updates between routers in virtual time: each is received by the others after a delay, or never.

Replaces workers, index processes and Redis of production; routers, updates and their application are the real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.replica_sync.sync import BUSY_HEARTBEAT_S, MIN_SNAPSHOT_S, SNAPSHOT_S, SPACING_S, TIMEOUT_S
from routing.decision.router import Router, replica_position
from routing.replica_state import ReplicaState, StateUpdate, UpdatePublisher
from tenancy.admission import Admission
from tenancy.peers import Peers

STATE_S = 2.0
"""How often a router states what it has open, where news can be lost."""


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

    def __init__(
        self, *, delay_s: float = 0.02, loss: float = 0.0, draw: Callable[[], float] = lambda: 1.0, beats: bool = False
    ) -> None:
        """`delay_s`: from a batch's end until a peer applies it; `loss`: the share of batches that a peer never gets,
        by `draw` in [0, 1). `beats`: heartbeats, snapshots and timeouts run as in production.
        """
        self.delay_s = delay_s
        self.loss = loss
        self.batches = 0
        self.updates = 0
        self._draw = draw
        self._loop = asyncio.get_running_loop()
        self._members: list[Member] = []
        self._held: list[tuple[Member, int, list[StateUpdate], float]] | None = None
        self._is_dropping = False
        self._isolated: int | None = None
        self._paused: dict[int, list[tuple[int, list[StateUpdate], float]]] = {}
        """Of routers whose updates are held back: number, updates and time of their batches."""
        self._beating = self._loop.create_task(self._beat()) if beats else None

    def join(self, router: Router, admission: Admission | None = None) -> ReplicaState:
        """Have a router, and its admission, publish and apply updates. Returns what applies them."""
        name = len(self._members)
        publisher = UpdatePublisher(lambda: self._wake(name))
        router.subscribe(publisher)
        peers = None
        if admission is not None:
            peers = admission.peers = Peers(admission, publisher.publish)
        member = Member(name, router, publisher, ReplicaState(router, admission=peers))
        self._members.append(member)
        for each in self._members:
            each.router.replica_position = each.name, len(self._members)
        return member.applier

    def publish(self, name: int, update: StateUpdate) -> None:
        """Publish an update of a router that belongs to no request; `name`: its place in the order of joining."""
        self._members[name].publisher.publish(update)

    def cut(self) -> None:
        """Cut the connection: every replica goes on alone, and updates are kept."""
        self._held = []
        for member in self._members:
            for other in self._members:
                member.applier.remove(other.name, self._loop.time())

    def mend(self) -> None:
        """Restore the connection: the kept updates are delivered, in order."""
        self._deliver_held()

    # -- as in production: heartbeats, and faults of what is between the routers ---------------------------------------

    def drop(self) -> None:
        """Lose whatever is sent from now on."""
        self._is_dropping = True

    def stall(self) -> None:
        """Hold back whatever is sent from now on, until `restore`."""
        self._held = []

    def isolate(self, name: int) -> None:
        """Lose what one router sends from now on; it still receives what others send."""
        self._isolated = name

    def pause(self, name: int) -> None:
        """Hold back what one router sends from now on, until `resume`."""
        self._paused.setdefault(name, [])

    def resume(self, name: int) -> None:
        """Deliver what was held back of one router, in order and in one go."""
        member = self._members[name]
        for number, batch, sent_s in self._paused.pop(name, ()):
            for other in self._members:
                if other is not member:
                    self._apply_batch(other, member, number, batch, sent_s)

    def restore(self) -> None:
        """Deliver from now on, and first whatever was held back, in order."""
        self._is_dropping, self._isolated = False, None
        self._deliver_held()

    def _deliver_held(self) -> None:
        """Deliver what was held back, in one go: the loop would run timers of the same time in any order, and a batch
        behind a later one is ignored.
        """
        held, self._held = self._held or (), None
        for member, number, batch, sent_s in held:
            for other in self._members:
                if other is not member:
                    self._apply_batch(other, member, number, batch, sent_s)

    def close(self) -> None:
        """End the heartbeats."""
        if self._beating is not None:
            self._beating.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BUSY_HEARTBEAT_S)
            now_s = self._loop.time()
            for member in self._members:
                if now_s - member.stated_s >= SNAPSHOT_S:
                    member.stated_s = now_s
                    member.publisher.publish_snapshot()
                elif now_s - member.sent_s >= BUSY_HEARTBEAT_S / 2:
                    self._send(member)
                if member.applier.admission is not None:
                    member.applier.admission.publish_waiting(now_s)
                member.applier.remove_stale(now_s - TIMEOUT_S, now_s)
                member.router.replica_position = replica_position(member.name, member.applier.replica_ids)

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
        if member.name in self._paused:
            self._paused[member.name].append((member.batches, batch, now_s))
        elif self._held is None:
            self._deliver(member, member.batches, batch, now_s)
        else:
            self._held.append((member, member.batches, batch, now_s))

    def _deliver(self, member: Member, number: int, batch: list[StateUpdate], sent_s: float) -> None:
        if self._is_dropping or member.name == self._isolated:
            return
        for other in self._members:
            if other is not member and not (self.loss and self._draw() < self.loss):
                self._loop.call_later(self.delay_s, self._apply_batch, other, member, number, batch, sent_s)

    def _apply_batch(self, other: Member, member: Member, number: int, batch: list[StateUpdate], sent_s: float) -> None:
        now_s = self._loop.time()
        is_contiguous = other.applier.apply(member.name, number, batch, now_s, sent_s)
        if self.loss:
            other.applier.remove_stale(now_s - TIMEOUT_S, now_s)
        if not is_contiguous and now_s - member.stated_s > max(self.delay_s, MIN_SNAPSHOT_S if self._beating else 0.0):
            member.stated_s = now_s
            missed_s = other.applier.missed_s(member.name, now_s)
            self._loop.call_later(self.delay_s, self._repair, member, missed_s)

    def _repair(self, member: Member, missed_s: float) -> None:
        now_s = self._loop.time()
        member.publisher.publish_missed(missed_s, now_s)
        if member.applier.admission is not None:
            member.applier.admission.publish_waiting(now_s, is_requested=True)

    async def settle(self) -> None:
        """Wait until everybody has heard, without loss, what everybody has open."""
        self.loss = 0.0
        for member in self._members:
            member.publisher.publish_snapshot()
        await asyncio.sleep(2 * (SPACING_S + self.delay_s))
