"""Quota coordinators lease shares of limits to the gateways that share them.

The coordinator is Redis (`redis_coordinator`), or without Redis the index process of the host, for its workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol

from gateway.replica_sync.host_client import IndexProcessClient
from gateway.replica_sync.ipc import IpcConnection
from gateway.replica_sync.ipc_messages import LeaseGrantMessage, LeaseRequestMessage
from tenancy.limits.leases import AccountLeases, LeaseGrant, LeaseRequest


class CoordinatorUnavailable(Exception):  # noqa: N818 - a state, not an error
    """The coordinator did not answer in time, or is not connected."""


class QuotaCoordinator(Protocol):
    """Leases limits. `who` is the gateway that asks."""

    @property
    def is_connected(self) -> bool: ...

    async def lease(self, path: str, holder: str, wanted: Sequence[LeaseRequest]) -> list[LeaseGrant]:
        """Renew the leases of one account; grants in the order of `wanted`. Raises `CoordinatorUnavailable`."""
        ...

    async def release(self, path: str, holder: str, wanted: Sequence[LeaseRequest]) -> None:
        """Release the leases of one account. Raises `CoordinatorUnavailable`."""
        ...

    async def run(self) -> None:
        """Keep connected until cancelled."""
        ...


ANSWER_S = 0.2
"""Without an answer by then the index process counts as unreachable."""

SWEEP_REQUESTS = 1_000
"""Requests between two sweeps that delete accounts without leases."""


class LocalQuotaCoordinator:
    """The coordinator of one host as its workers call it."""

    def __init__(self, client: IndexProcessClient) -> None:
        self._client = client
        self._tickets = count()
        self._waiting: dict[int, asyncio.Future[list[LeaseGrant]]] = {}
        client.on(LeaseGrantMessage, self._take)

    @property
    def is_connected(self) -> bool:
        return self._client.is_connected

    async def lease(self, path: str, holder: str, wanted: Sequence[LeaseRequest]) -> list[LeaseGrant]:
        ticket = next(self._tickets)
        answer: asyncio.Future[list[LeaseGrant]] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = answer
        try:
            if not self._client.send(LeaseRequestMessage(ticket, path, holder, tuple(wanted))):
                raise CoordinatorUnavailable
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except TimeoutError:
            raise CoordinatorUnavailable from None
        finally:
            del self._waiting[ticket]

    async def release(self, path: str, holder: str, wanted: Sequence[LeaseRequest]) -> None:
        if not self._client.send(LeaseRequestMessage(next(self._tickets), path, holder, tuple(wanted), releases=True)):
            raise CoordinatorUnavailable

    async def run(self) -> None:
        """Wait until cancelled: the owner of the client keeps it connected."""
        await asyncio.get_running_loop().create_future()

    def _take(self, granted: LeaseGrantMessage) -> None:
        answer = self._waiting.get(granted.ticket)
        if answer is not None and not answer.done():
            answer.set_result(list(granted.grants))


class LocalQuotaLeases:
    """The coordinator of one host, in its index process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._accounts: dict[str, AccountLeases] = {}
        self._clock = clock
        self._asks = 0

    def __len__(self) -> int:
        return len(self._accounts)

    def take(self, connection: IpcConnection, request: LeaseRequestMessage) -> None:
        """Answer a worker that renews or releases its leases of one account."""
        slices, now_s = self._accounts.setdefault(request.path, AccountLeases()), self._clock()
        if request.releases:
            slices.release(request.holder, request.requests, now_s)
        else:
            connection.send(
                LeaseGrantMessage(request.ticket, tuple(slices.grant(request.holder, request.requests, now_s)))
            )
        self._asks += 1
        if self._asks % SWEEP_REQUESTS == 0:
            self._sweep(now_s)

    def _sweep(self, now_s: float) -> None:
        for path, slices in list(self._accounts.items()):
            slices.grant("", (), now_s)
            if slices.is_empty:
                del self._accounts[path]
