"""The workers of a host share their limits out of the memory of its index process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.limits.coordinator import SWEEP_REQUESTS, CoordinatorUnavailable, LocalQuotaCoordinator, LocalQuotaLeases
from gateway.replica_sync.ipc_messages import LeaseGrantMessage, LeaseRequestMessage, decode_message, encode_frame
from tenancy.limits.leases import LeaseRequest

ASK = LeaseRequest("tokens", 100.0, 0.0, 70.0, 0.0, keeps_s=75.0)


class Wire:
    """A connection between a worker and the index process: what is said goes through frames."""

    def __init__(self, slices: LocalQuotaLeases, *, is_connected: bool = True) -> None:
        self.is_connected = is_connected
        self.answers = True
        self._slices = slices
        self._take: Any = None

    def on(self, kind: type, take: Any) -> None:
        assert kind is LeaseGrantMessage
        self._take = take

    def send(self, message: Any) -> bool:
        stated = decode_message(encode_frame(message)[4:])
        if isinstance(stated, LeaseRequestMessage) and self.is_connected:
            line: Any = self
            self._slices.take(line, stated)
        elif self.answers and isinstance(stated, LeaseGrantMessage):
            self._take(stated)
        return self.is_connected


def lender(slices: LocalQuotaLeases, **words: bool) -> tuple[LocalQuotaCoordinator, Wire]:
    wire = Wire(slices, **words)
    client: Any = wire
    return LocalQuotaCoordinator(client), wire


async def test_workers_get_slices_of_one_limit() -> None:
    """Both together no more than there is; and who leaves gives back what it had."""
    slices = LocalQuotaLeases(lambda: 0.0)
    (one, _), (other, _) = lender(slices), lender(slices)
    assert (await one.lease("search", "w1", [ASK]))[0].slice == 70
    assert (await other.lease("search", "w2", [ASK]))[0].slice == 30
    await one.release("search", "w1", [ASK])
    assert (await other.lease("search", "w2", [ASK]))[0].slice == 70


async def test_an_index_process_that_is_away_or_silent_lends_nothing() -> None:
    """The worker is told so, and goes by what it knows."""
    away, _ = lender(LocalQuotaLeases(lambda: 0.0), is_connected=False)
    with pytest.raises(CoordinatorUnavailable):
        await away.lease("search", "w1", [ASK])
    with pytest.raises(CoordinatorUnavailable):
        await away.release("search", "w1", [ASK])
    silent, wire = lender(LocalQuotaLeases(lambda: 0.0))
    wire.answers = False
    async with asyncio.timeout(120):
        with pytest.raises(CoordinatorUnavailable):
            await silent.lease("search", "w1", [ASK])


async def test_accounts_that_no_one_uses_are_forgotten() -> None:
    """Users come and go, and the process lives long."""
    now_s = 0.0
    slices = LocalQuotaLeases(lambda: now_s)
    one, _ = lender(slices)
    for number in range(SWEEP_REQUESTS - 1):
        await one.lease(f"user{number}", "w1", [ASK])
    assert len(slices) == SWEEP_REQUESTS - 1
    now_s = 80.0
    await one.lease("last", "w1", [ASK])
    assert len(slices) == 1
