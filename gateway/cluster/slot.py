"""A place that is kept filled: whichever child leaves it unasked is followed by another, sooner or later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from gateway.cluster.child import CannotStart, Child
from gateway.cluster.messages import Orders
from gateway.runtime.event_log import EventLog
from gateway.runtime.guard import restarted

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
PING_S = 5.0
MOST_UNANSWERED = 12
"""A minute of silence: nothing that a worker does takes so long, and its share of the connections hangs with it.
Counted in pings, not in seconds: where we ourselves were stopped for a while, nobody else is to blame.
"""

SETTLED_S = 10.0
"""A child that lived so long is no child that cannot live: the next one follows without delay."""


def next_pause(pause_s: float, lived_s: float) -> float:
    """Seconds until the next child is started, after one that followed a pause and lived so long."""
    if lived_s >= SETTLED_S:
        return FIRST_PAUSE_S
    return min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * pause_s))


class Seat:
    """One of them. `keep` runs until `leave` was said and the child has ended."""

    def __init__(
        self,
        name: str,
        orders: Callable[[], Awaitable[Orders]],
        *,
        say: EventLog,
        began: Callable[[Child], None],
        ended: Callable[[Child], None],
        ping_s: float = PING_S,
    ) -> None:
        """`orders`: made anew for each child. `began` and `ended` are told of each that was at work."""
        self.name = name
        self.restarts = 0
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the first child is at work; fails with `CannotStart`."""
        self._orders = orders
        self._say = say
        self._began = began
        self._ended = ended
        self._ping_s = ping_s
        self._child: Child | None = None
        self._leaving = asyncio.Event()

    @property
    def child(self) -> Child | None:
        """Who is at work here now."""
        return self._child if self._child is not None and self._child.is_at_work else None

    @restarted("supervisor")
    async def keep(self) -> None:
        """Have a child here, always."""
        pause_s = 0.0
        while not self._leaving.is_set():
            began_s = asyncio.get_running_loop().time()
            status, lines = await self._have_one()
            if not self.first.done():
                self.first.set_exception(CannotStart(lines))
                return
            if self._leaving.is_set():
                return
            self.restarts += 1
            pause_s = next_pause(pause_s, asyncio.get_running_loop().time() - began_s)
            self._say(
                "info" if status == 0 else "error",
                f"{self.name} has ended, another one follows",
                status=status,
                pause_s=pause_s,
                **({"faults": lines} if lines else {}),
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._leaving.wait()

    def leave(self) -> None:
        """Have the child finish, and no other follow. A second time: have it end now."""
        self._leaving.set()
        if self._child is not None:
            self._child.stop()

    def take_drained(self, pod: str, *, is_drained: bool) -> None:
        """Whoever is here or will be in a moment gives a pod no requests, or again."""
        if self._child is not None:
            self._child.take_drained(pod, is_drained=is_drained)

    def kill(self) -> None:
        """End the child, whatever it does."""
        if self._child is not None:
            self._child.kill()

    async def _have_one(self) -> tuple[int, tuple[str, ...]]:
        """One child's life: its exit status, and why it could not begin."""
        try:
            child = await Child.start(await self._orders())
        except OSError as error:
            return -1, (f"{self.name} cannot be started: {error}",)
        self._child = child
        if self._leaving.is_set():
            child.stop()
        child.started.add_done_callback(lambda _: self._note_start(child))
        watching = asyncio.create_task(self._watch(child), name=f"watch {self.name}")
        try:
            status = await child.over()
        finally:
            watching.cancel()
            self._child = None
        failure = child.started.exception()
        if failure is None:
            self._ended(child)
            return status, ()
        return status, failure.lines if isinstance(failure, CannotStart) else (str(failure),)

    @restarted("supervisor")
    async def _watch(self, child: Child) -> None:
        """End a child that is there and does nothing any more."""
        while child.unanswered < MOST_UNANSWERED:
            await asyncio.sleep(self._ping_s)
            if child.is_at_work:
                child.ping()
        self._say("error", f"{self.name} hangs: it is killed", pid=child.pid)
        child.kill()

    def _note_start(self, child: Child) -> None:
        if not child.is_at_work:
            return
        self._began(child)
        self._say("info", f"{self.name} is at work", pid=child.pid)
        if not self.first.done():
            self.first.set_result(None)
