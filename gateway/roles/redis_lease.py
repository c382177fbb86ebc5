"""The lease on roles among all gateways that share a Redis: one key that holds lease and assignment.

While Redis is unreachable the holder goes on deciding until its lease would have expired; then all keep the roles that
they know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from gateway.config.redis_location import RedisPlace
from gateway.roles.lease import LEASE_S, MOST_BYTES, RoleAssignment, RoleLease
from gateway.runtime.guard import restarted
from gateway.runtime.redis_client import Client, connected, heed_cancel

KEY = "hearth:roles"

ANSWER_S = 1.0

AGAIN_S = 1.0

SCRIPT = """
local said = redis.call('GET', KEYS[1])
if said and cjson.decode(said)['who'] ~= ARGV[1] then return said end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return ARGV[2]
"""
"""Writes our assignment unless another gateway's stands there. Returns what stands there then."""


class RedisRoleLease(RoleLease):
    """One per gateway that has a Redis. `run` keeps it connected."""

    def __init__(self, place: RedisPlace, who: str, clock: Callable[[], float]) -> None:
        super().__init__(who, clock)
        self._key = f"{place.prefix}{KEY}"
        self._place = place
        self._client: Client | None = None
        self._lost = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        """Whether Redis is there."""
        return self._client is not None

    async def _propose(self, roles: Mapping[str, str], expires_s: float) -> RoleAssignment | None:
        client = self._client
        if client is None:
            return None
        proposed = msgspec.json.encode(RoleAssignment(self._who, roles=dict(roles)))
        try:
            async with asyncio.timeout(ANSWER_S):
                stored = cast("Any", await client.eval(SCRIPT, 1, self._key, self._who, proposed, int(LEASE_S * 1000)))
            return msgspec.json.decode(stored[:MOST_BYTES], type=RoleAssignment)
        except Exception:  # noqa: BLE001 - not all of the library's errors are its own, and none may end us
            heed_cancel()
            self._client = None
            self._lost.set()
            return None

    @restarted("roles")
    async def run(self) -> None:
        """Keep connected until cancelled."""
        while True:
            try:
                async with connected(self._place, answer_s=ANSWER_S) as client:
                    async with asyncio.timeout(ANSWER_S):
                        await client.ping()
                    self._lost.clear()
                    self._client = client
                    await self._lost.wait()
            except Exception:  # noqa: BLE001 - Redis may be gone in any way
                heed_cancel()
            finally:
                self._client = None
            await asyncio.sleep(AGAIN_S)
