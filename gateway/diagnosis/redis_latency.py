"""Measures how long Redis takes to answer: a ping every few seconds over a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from gateway.runtime.guard import raise_if_cancelled, restarted
from gateway.runtime.redis_client import connect_redis
from gateway.runtime.redis_location import RedisLocation

PING_INTERVAL_S = 5.0

TIMEOUT_S = 2.0
"""A Redis that has not answered after this time counts as this slow."""


class RedisLatency:
    """One per gateway that has a Redis. `note` receives the seconds of each ping."""

    def __init__(self, place: RedisLocation, note: Callable[[float], object], clock: Callable[[], float]) -> None:
        self._place = place
        self._note = note
        self._clock = clock

    @restarted("redis latency")
    async def run(self) -> None:
        """Ping until cancelled, through outages."""
        while True:
            try:
                async with connect_redis(self._place, answer_s=TIMEOUT_S) as client:
                    while True:
                        begun_s = self._clock()
                        await cast("Any", client).ping()
                        raise_if_cancelled()
                        self._note(self._clock() - begun_s)
                        await asyncio.sleep(PING_INTERVAL_S)
            except Exception:  # noqa: BLE001 - not all of the library's errors are its own; outages are logged elsewhere
                raise_if_cancelled()
                self._note(TIMEOUT_S)
            await asyncio.sleep(PING_INTERVAL_S)
