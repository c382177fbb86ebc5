"""One connection to Redis that is kept open, for small commands each of which may fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from gateway.runtime.guard import raise_if_cancelled, restarted
from gateway.runtime.redis_client import RedisClient, connect_redis
from gateway.runtime.redis_location import RedisLocation

T = TypeVar("T")

TIMEOUT_S = 1.0

RECONNECT_S = 1.0


class RedisUnavailable(Exception):  # noqa: N818 - a state of things
    """Redis is away, or what it holds cannot be read."""


class RedisLink:
    """One per purpose. `run` keeps it connected."""

    def __init__(self, place: RedisLocation) -> None:
        self._place = place
        self._client: RedisClient | None = None
        self._lost = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        """Whether Redis is there."""
        return self._client is not None

    async def ask(self, command: Callable[[Any], Awaitable[T]]) -> T:
        """Run a command on the client and return its result. Raises `RedisUnavailable`; then it connects anew."""
        if self._client is None:
            raise RedisUnavailable
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await command(self._client)
        except Exception as error:
            raise_if_cancelled()
            self._client = None
            self._lost.set()
            raise RedisUnavailable(str(error)) from error

    @restarted("redis link")
    async def run(self) -> None:
        """Keep connected until cancelled."""
        while True:
            try:
                async with connect_redis(self._place, answer_s=TIMEOUT_S) as client:
                    async with asyncio.timeout(TIMEOUT_S):
                        await client.ping()
                    self._lost.clear()
                    self._client = client
                    await self._lost.wait()
            except Exception:  # noqa: BLE001 - Redis may be gone in any way
                raise_if_cancelled()
            finally:
                self._client = None
            await asyncio.sleep(RECONNECT_S)
