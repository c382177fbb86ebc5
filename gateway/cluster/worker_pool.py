"""Which processes some settings ask for. Decides; starts nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from gateway.cluster.channel import Orders
from gateway.cluster.child import Answer, Child, Seat
from gateway.config.values import Settings
from gateway.observe.log import EventLog
from gateway.reload import Fresh
from gateway.runtime.host import Host
from gateway.runtime.ports import Binding
from routing.pods import Standing


def needs_warmth(settings: Settings) -> bool:
    """Whether there is anybody to share warmth and ledger with, or an engine's own word to follow."""
    return settings.processes > 1 or settings.redis is not None or settings.kv_events is not None


def needs_supervisor(settings: Settings) -> bool:
    """Whether there will be more than one process."""
    return settings.processes > 1 or needs_warmth(settings)


WARMTH = "warmth"

LEEWAY_S = 10.0
"""Beyond the grace of a drain, before a child that does not end is killed."""


class _Pod(msgspec.Struct):
    url: str
    standing: str


class _Fleet(msgspec.Struct):
    pods: list[_Pod]


class Team:
    """One per supervisor."""

    def __init__(
        self,
        fresh: Fresh,
        folder: Path,
        traffic: tuple[Binding, ...],
        *,
        say: EventLog,
        began: Callable[[Child], None],
        ended: Callable[[Child], None],
    ) -> None:
        """`began` and `ended` are told of each child that was at work."""
        self.fresh = fresh
        """What all go by."""
        self._traffic = traffic
        self._keeping: dict[Seat, asyncio.Task[None]] = {}
        self._told_of_begin = began
        self._host = Host(processes=fresh.settings.processes, folder=folder)
        self.warmth: Seat | None = None
        if needs_warmth(fresh.settings):
            self._host = replace(self._host, warmth=folder / f"{WARMTH}-news.sock")
            self.warmth = Seat(WARMTH, self._orders_of_warmth, say=say, began=self._take_begin, ended=ended)
        self.workers = tuple(
            Seat(f"worker-{number}", partial(self._orders, number), say=say, began=self._take_begin, ended=ended)
            for number in range(1, fresh.settings.processes + 1)
        )

    @property
    def seats(self) -> tuple[Seat, ...]:
        return (self.warmth, *self.workers) if self.warmth else self.workers

    @property
    def children(self) -> list[Child]:
        """Who is at work now."""
        return [seat.child for seat in self.seats if seat.child]

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Every seat is filled, as well as that goes. Whoever is left at the end is killed."""
        self._keeping = {seat: asyncio.create_task(seat.keep(), name=seat.name) for seat in self.seats}
        try:
            yield
        finally:
            for seat in self.seats:
                seat.leave()
                seat.kill()
            await asyncio.gather(*self._keeping.values(), return_exceptions=True)

    async def begun(self) -> None:
        """Wait until all are at work for the first time. Raises `CannotStart` as soon as one of them cannot be."""
        await asyncio.gather(*(seat.first for seat in self.seats))

    async def leave(self, cut: asyncio.Event, grace_s: float) -> None:
        """Have the workers finish what runs; at `cut`, or when the time is over, have them end at once.

        The warmth process goes last: until then it takes what they have to say.
        """
        ended = asyncio.create_task(self._end(self.workers, grace_s + LEEWAY_S), name="workers end")
        cutting = asyncio.create_task(cut.wait(), name="cut")
        await asyncio.wait((ended, cutting), return_when=asyncio.FIRST_COMPLETED)
        cutting.cancel()
        if not ended.done():
            await self._end(self.workers, LEEWAY_S)
            ended.cancel()
        await asyncio.gather(ended, cutting, return_exceptions=True)
        if self.warmth is not None:
            await self._end((self.warmth,), LEEWAY_S)

    async def _end(self, seats: Sequence[Seat], limit_s: float) -> None:
        for seat in seats:
            seat.leave()
        await asyncio.wait([self._keeping[seat] for seat in seats], timeout=limit_s)

    async def renew(self, fresh: Fresh) -> dict[str, tuple[str, ...]]:
        """Have all put something in force, also those that begin later. Returns what was wrong, by child."""
        self.fresh = fresh
        children = self.children
        faults = await asyncio.gather(*(child.renew(fresh) for child in children))
        return {child.name: found for child, found in zip(children, faults, strict=True)}

    def reopen_logs(self) -> None:
        """Have all go on in new log files."""
        for child in self.children:
            child.reopen_logs()

    async def ask(self, path: str, *, method: str = "GET", body: bytes | None = None) -> dict[str, Answer]:
        """What the workers answer, by name, in order."""
        children = [seat.child for seat in self.workers if seat.child]
        answers = await asyncio.gather(*(child.ask(path, method=method, body=body) for child in children))
        return {child.name: answer for child, answer in zip(children, answers, strict=True) if answer is not None}

    def take_drained(self, pod: str, *, is_drained: bool) -> None:
        """An operator has said so to all who are at work: who is just beginning is to hear it too."""
        for seat in self.workers:
            seat.take_drained(pod, is_drained=is_drained)

    # -- orders ------------------------------------------------------------------------------------------------------

    async def _orders(self, number: int) -> Orders:
        host = replace(self._host, number=number)
        return Orders(f"worker-{number}", host, self.fresh, self._traffic, await self._drained())

    async def _orders_of_warmth(self) -> Orders:
        return Orders(WARMTH, self._host, self.fresh)

    async def _drained(self) -> frozenset[str]:
        """The pods that the workers give no requests: who joins them must not either."""
        for answer in (await self.ask("/admin/fleet")).values():
            try:
                fleet = msgspec.json.decode(answer.body, type=_Fleet)
            except msgspec.MsgspecError:
                continue
            return frozenset(pod.url for pod in fleet.pods if pod.standing == Standing.DRAINING)
        return frozenset()

    def _take_begin(self, child: Child) -> None:
        """It may have begun by what was in force before a reload."""
        if child.fresh is not self.fresh:
            child.tell(self.fresh)
        self._told_of_begin(child)
