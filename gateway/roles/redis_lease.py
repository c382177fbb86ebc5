"""The lease on roles among all gateways that share a Redis: one key that holds lease and assignment.

While Redis is unreachable the holder goes on deciding until its lease would have expired; then all keep the roles that
they know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from gateway.roles.lease import LEASE_S, MAX_BYTES, RoleAssignment, RoleLease
from gateway.runtime.guard import restarted
from gateway.runtime.redis_link import RedisLink, RedisUnavailable
from gateway.runtime.redis_location import RedisLocation

KEY = "hearth:roles"

NOTHING = RoleAssignment("")

SCRIPT = """
local said = redis.call('GET', KEYS[1])
if said and cjson.decode(said)['who'] ~= ARGV[1] then return said end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return ARGV[2]
"""
"""Writes our assignment unless another gateway's stands there. Returns what stands there then."""


class RedisRoleLease(RoleLease):
    """One per gateway that has a Redis, and kind of assignment. `run` keeps it connected."""

    def __init__(self, place: RedisLocation, who: str, clock: Callable[[], float], *, key: str = KEY) -> None:
        """`key`: what is assigned: roles, or another text by name of a pod or engine."""
        super().__init__(who, clock)
        self._key = f"{place.prefix}{key}"
        self._link = RedisLink(place)

    @property
    def is_connected(self) -> bool:
        """Whether Redis is there."""
        return self._link.is_connected

    async def _propose(self, roles: Mapping[str, str], expires_s: float) -> RoleAssignment | None:
        proposed = msgspec.json.encode(RoleAssignment(self._who, roles=dict(roles)))
        return await self._ask(
            lambda client: client.eval(SCRIPT, 1, self._key, self._who, proposed, int(LEASE_S * 1000))
        )

    async def read(self) -> Mapping[str, str] | None:
        """Return what is stored, empty where no lease is held; None where that is not known."""
        stored = await self._ask(lambda client: client.get(self._key))
        return None if stored is None else stored.roles

    async def _ask(self, command: Callable[[Any], Awaitable[bytes | None]]) -> RoleAssignment | None:
        async def decoded(client: Any) -> RoleAssignment:
            stored = await command(client)
            return NOTHING if stored is None else msgspec.json.decode(stored[:MAX_BYTES], type=RoleAssignment)

        try:
            return await self._link.ask(decoded)
        except RedisUnavailable:
            return None

    @restarted("roles")
    async def run(self) -> None:
        """Keep connected until cancelled."""
        await self._link.run()
