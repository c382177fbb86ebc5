"""A client that asks until it is answered or gives up, whatever carries its attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import count

from bench.slo.retrying import wait_before_next

Attempt = Callable[[int], Awaitable[tuple[int, Mapping[str, str]]]]
"""Sends one attempt, given the number of earlier ones; returns status and headers of the response's head."""


async def persist(attempt: Attempt, draw: Callable[[], float]) -> None:
    """Ask as OpenAI's client does, which takes any head of success for an answer, however its stream ends."""
    for retries in count():
        status, headers = await attempt(retries)
        wait_s = wait_before_next(status, headers, retries, draw())
        if wait_s is None:
            return
        await asyncio.sleep(wait_s)
