"""Quota coordinators lease shares of limits to the gateways that share them.

The coordinator is Redis (`redis_coordinator`), or without Redis the index process of the host, for its workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol

from gateway.replica_sync.host_client import WarmthClient
from gateway.replica_sync.ipc import Line
from gateway.replica_sync.ipc_messages import SlicesAsked, SlicesGranted
from tenancy.limits.leases import Ask, Granted, Slices


class LenderAway(Exception):  # noqa: N818 - a state, not an error
    """The coordinator did not answer in time, or is not connected."""


class Lender(Protocol):
    """Leases limits. `who` is the gateway that asks."""

    @property
    def is_connected(self) -> bool: ...

    async def lease(self, path: str, holder: str, asks: Sequence[Ask]) -> list[Granted]:
        """Renew the leases of one account; grants in the order of `asks`. Raises `LenderAway`."""
        ...

    async def release(self, path: str, holder: str, asks: Sequence[Ask]) -> None:
        """Release the leases of one account. Raises `LenderAway`."""
        ...

    async def run(self) -> None:
        """Keep connected until cancelled."""
        ...


ANSWER_S = 0.2
"""Without an answer by then the index process counts as unreachable."""

SWEPT_AFTER = 1_000
"""Requests between two sweeps that delete accounts without leases."""


class HostLender:
    """The coordinator of one host as its workers call it."""

    def __init__(self, client: WarmthClient) -> None:
        self._client = client
        self._tickets = count()
        self._waiting: dict[int, asyncio.Future[list[Granted]]] = {}
        client.on(SlicesGranted, self._take)

    @property
    def is_connected(self) -> bool:
        return self._client.is_connected

    async def lease(self, path: str, holder: str, asks: Sequence[Ask]) -> list[Granted]:
        ticket = next(self._tickets)
        answer: asyncio.Future[list[Granted]] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = answer
        try:
            if not self._client.send(SlicesAsked(ticket, path, holder, tuple(asks))):
                raise LenderAway
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except TimeoutError:
            raise LenderAway from None
        finally:
            del self._waiting[ticket]

    async def release(self, path: str, holder: str, asks: Sequence[Ask]) -> None:
        if not self._client.send(SlicesAsked(next(self._tickets), path, holder, tuple(asks), leaves=True)):
            raise LenderAway

    async def run(self) -> None:
        """Wait until cancelled: the owner of the client keeps it connected."""
        await asyncio.get_running_loop().create_future()

    def _take(self, granted: SlicesGranted) -> None:
        answer = self._waiting.get(granted.ticket)
        if answer is not None and not answer.done():
            answer.set_result(list(granted.grants))


class HostSlices:
    """The coordinator of one host, in its index process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._accounts: dict[str, Slices] = {}
        self._clock = clock
        self._asks = 0

    def __len__(self) -> int:
        return len(self._accounts)

    def take(self, connection: Line, asked: SlicesAsked) -> None:
        """Answer a worker that renews or releases its leases of one account."""
        slices, now_s = self._accounts.setdefault(asked.path, Slices()), self._clock()
        if asked.leaves:
            slices.leave(asked.who, asked.asks, now_s)
        else:
            connection.send(SlicesGranted(asked.ticket, tuple(slices.ask(asked.who, asked.asks, now_s))))
        self._asks += 1
        if self._asks % SWEPT_AFTER == 0:
            self._sweep(now_s)

    def _sweep(self, now_s: float) -> None:
        for path, slices in list(self._accounts.items()):
            slices.ask("", (), now_s)
            if slices.is_empty:
                del self._accounts[path]
