"""One of several gateways decides roles, and the others follow: through one key in Redis that is both lease and news.

Who holds the lease writes what it decided with it, every second; whoever finds another's word there follows it. Redis
away: whoever decided goes on until its lease would have ended, then all keep the roles that they know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec import Struct

from gateway.config.redis_location import RedisPlace
from gateway.roles.setup import LEASE_S, MOST_BYTES
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
"""Our word, where nobody else's stands; what stands there then."""


class Word(Struct, frozen=True):
    """What one gateway has decided: who it is, and roles by engine name."""

    who: str
    roles: dict[str, str] = {}


class SharedRoles:
    """One per gateway that has a Redis."""

    def __init__(self, place: RedisPlace, who: str, clock: Callable[[], float]) -> None:
        self._key = f"{place.prefix}{KEY}"
        self._place = place
        self._who = who
        self._clock = clock
        self._client: Client | None = None
        self._lost = asyncio.Event()
        self._ours_until_s = 0.0

    @property
    def is_connected(self) -> bool:
        """Whether Redis is there."""
        return self._client is not None

    @property
    def decides(self) -> bool:
        """Whether the lease is ours."""
        return self._clock() < self._ours_until_s

    async def exchange(self, roles: Mapping[str, str]) -> Mapping[str, str]:
        """Say what we would have, and hear what is to be: our own word where the lease is ours, another's where it is
        not, ours again while nobody answers.
        """
        client = self._client
        if client is None:
            return roles
        word = msgspec.json.encode(Word(self._who, dict(roles)))
        began_s = self._clock()
        try:
            async with asyncio.timeout(ANSWER_S):
                said = cast("Any", await client.eval(SCRIPT, 1, self._key, self._who, word, int(LEASE_S * 1000)))
            heard = msgspec.json.decode(said[:MOST_BYTES], type=Word)
        except Exception:  # noqa: BLE001 - not all of the library's errors are its own, and none may end us
            heed_cancel()
            self._client = None
            self._lost.set()
            return roles
        self._ours_until_s = began_s + LEASE_S if heard.who == self._who else 0.0
        return heard.roles

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
