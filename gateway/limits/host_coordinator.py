"""Lends slices among the workers of one host, out of the memory of its warmth process, where there is no Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from gateway.cluster.host_client import WarmthClient
from gateway.cluster.ipc import Line
from gateway.cluster.ipc_messages import SlicesAsked, SlicesGranted
from gateway.limits.coordinator import LenderAway
from tenancy.limits.leases import Ask, Granted, Slices

ANSWER_S = 0.2
"""A warmth process that has not answered by then is busy with something else."""

SWEPT_AFTER = 1_000
"""Asks, after which accounts that nobody holds anything of any more are forgotten."""


class HostLender:
    """A worker's end."""

    def __init__(self, client: WarmthClient) -> None:
        self._client = client
        self._tickets = count()
        self._waiting: dict[int, asyncio.Future[list[Granted]]] = {}
        client.on(SlicesGranted, self._take)

    @property
    def is_connected(self) -> bool:
        return self._client.is_connected

    async def ask(self, path: str, who: str, asks: Sequence[Ask]) -> list[Granted]:
        ticket = next(self._tickets)
        answer: asyncio.Future[list[Granted]] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = answer
        try:
            if not self._client.send(SlicesAsked(ticket, path, who, tuple(asks))):
                raise LenderAway
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except TimeoutError:
            raise LenderAway from None
        finally:
            del self._waiting[ticket]

    async def leave(self, path: str, who: str, asks: Sequence[Ask]) -> None:
        if not self._client.send(SlicesAsked(next(self._tickets), path, who, tuple(asks), leaves=True)):
            raise LenderAway

    async def run(self) -> None:
        """The client is kept connected by whoever made it."""
        await asyncio.get_running_loop().create_future()

    def _take(self, granted: SlicesGranted) -> None:
        answer = self._waiting.get(granted.ticket)
        if answer is not None and not answer.done():
            answer.set_result(list(granted.grants))


class HostSlices:
    """The warmth process's end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._accounts: dict[str, Slices] = {}
        self._clock = clock
        self._asks = 0

    def __len__(self) -> int:
        return len(self._accounts)

    def take(self, line: Line, asked: SlicesAsked) -> None:
        """A worker has asked for its slices of one account, or gives them up."""
        slices, now_s = self._accounts.setdefault(asked.path, Slices()), self._clock()
        if asked.leaves:
            slices.leave(asked.who, asked.asks, now_s)
        else:
            line.send(SlicesGranted(asked.ticket, tuple(slices.ask(asked.who, asked.asks, now_s))))
        self._asks += 1
        if self._asks % SWEPT_AFTER == 0:
            self._sweep(now_s)

    def _sweep(self, now_s: float) -> None:
        for path, slices in list(self._accounts.items()):
            slices.ask("", (), now_s)
            if slices.is_empty:
                del self._accounts[path]
