"""Waits for what other processes do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

POLL_S = 0.05


async def until(holds: Callable[[], object], within_s: float = 90.0) -> None:
    """Wait until a condition holds. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - another process makes it hold
            await asyncio.sleep(POLL_S)
