"""The state of canaries in Redis: one key without an end of life, changed only where no other gateway was faster."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.canary.state_store import MAX_BYTES, ChangeState, StateUnavailable
from gateway.runtime.guard import restarted
from gateway.runtime.redis_link import RedisLink, RedisUnavailable
from gateway.runtime.redis_location import RedisLocation
from routing.canary.verdict import CanaryState

KEY = "hearth:canary"

MAX_TRIES = 5
"""Changes that are tried at once, each after another gateway was faster."""

SCRIPT = """
local stored = redis.call('GET', KEYS[1])
if (stored or '') ~= ARGV[1] then return stored or '' end
redis.call('SET', KEYS[1], ARGV[2])
return false
"""
"""Replaces what we have read by what we make of it. Returns what is stored instead where it has changed, else nil: two
gateways may make the same of it, and both have to count."""


class RedisStore:
    """One per gateway process. `run` keeps it connected."""

    def __init__(self, place: RedisLocation) -> None:
        self._key = f"{place.prefix}{KEY}"
        self._link = RedisLink(place)

    @property
    def is_connected(self) -> bool:
        """Whether Redis is there."""
        return self._link.is_connected

    async def update(self, change: ChangeState) -> CanaryState:
        """Change the stored state. Raises `StateUnavailable` where Redis is away, or others are faster again and again.

        The key is read and written as one: a state that a later version has written is an error, and stays.
        """

        async def changed(client: Any) -> CanaryState | None:
            stored = await client.get(self._key) or b""
            for _ in range(MAX_TRIES):
                state = _decoded(stored)
                after = change(state)
                if after == state:
                    return after
                encoded = msgspec.json.encode(after)
                changed_by_other = await client.eval(SCRIPT, 1, self._key, stored, encoded)
                if changed_by_other is None:
                    return after
                stored = changed_by_other
            return None

        try:
            state = await self._link.ask(changed)
        except RedisUnavailable as error:
            raise StateUnavailable(f"Redis: {str(error) or 'not connected'}") from error
        if state is None:
            raise StateUnavailable("Redis: other gateways change it at this moment")
        return state

    @restarted("canary state")
    async def run(self) -> None:
        """Keep connected until cancelled."""
        await self._link.run()


def _decoded(stored: bytes) -> CanaryState | None:
    return msgspec.json.decode(stored[:MAX_BYTES], type=CanaryState) if stored else None
