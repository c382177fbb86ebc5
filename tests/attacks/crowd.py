"""Thousands of connections of one attacker: what each sends, drop by drop or at once, and what it has been told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import cast

AT_ONCE = 64
"""Connections that are being opened."""

PATIENCE_S = 120.0


class Attacker(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self.reported = bytearray()
        self.is_gone = False
        self.stirred = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.reported += data
        self.stirred.set()

    def resume_writing(self) -> None:
        self.stirred.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone = True
        self.stirred.set()

    async def until(self, is_so: Callable[[Attacker], bool]) -> None:
        """Wait until something is so, or the connection is gone."""
        async with asyncio.timeout(PATIENCE_S):
            while not is_so(self) and not self.is_gone:
                self.stirred.clear()
                await self.stirred.wait()


@asynccontextmanager
async def crowd(port: int, count: int, first: Callable[[int], bytes]) -> AsyncIterator[Sequence[Attacker]]:
    """So many connections that have said their first bytes; all gone at the end."""
    loop, numbers, attackers = asyncio.get_running_loop(), iter(range(count)), list[Attacker]()

    async def come() -> None:
        for number in numbers:
            _, attacker = await loop.create_connection(Attacker, "127.0.0.1", port)
            attackers.append(attacker)
            attacker.transport.write(first(number))

    try:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(come() for _ in range(AT_ONCE)))
        yield attackers
    finally:
        for attacker in attackers:
            attacker.transport.abort()


async def trickle(attackers: Sequence[Attacker], drop: bytes) -> None:
    """A drop more from everybody who is still there."""
    for attacker in attackers:
        if not attacker.is_gone:
            with suppress(OSError):
                attacker.transport.write(drop)
    await asyncio.sleep(0)
