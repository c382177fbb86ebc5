"""The quota coordinator in Redis: one hash and one script per account, in one cluster slot, on stock Redis 5 or later.

Redis may be slow, hung, gone, emptied or failed over at any time. Callers then get `CoordinatorUnavailable` after
`ANSWER_S` at the latest, and at once while there is no connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from hashlib import sha1
from typing import Any, cast

from redis.exceptions import ConnectionError as RedisLost
from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisLate

from gateway.limits.coordinator import CoordinatorUnavailable
from gateway.runtime.event_log import EventLog
from gateway.runtime.guard import raise_if_cancelled, restarted
from gateway.runtime.redis_client import RedisClient, connect_redis
from gateway.runtime.redis_location import RedisLocation
from tenancy.limits.leases import LeaseGrant, LeaseRequest

KEY_PREFIX = "hearth:quota:"

ANSWER_S = 0.2
"""Without an answer by then Redis counts as unreachable: requests wait for it."""

MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 2.0

CONCURRENCY = 16
"""Requests in flight, each on its own connection."""

SCRIPT = """
local SEP = '\\31'
local now = redis.call('TIME')
now = tonumber(now[1]) + tonumber(now[2]) / 1e6

local holders, gone = {}, {}
local flat = redis.call('HGETALL', KEYS[1])
for at = 1, #flat, 2 do
  local name, who = string.match(flat[at], '^([^' .. SEP .. ']*)' .. SEP .. '(.*)$')
  local slice, wanted, till = string.match(flat[at + 1], '^(%S+) (%S+) (%S+)$')
  if tonumber(till) <= now then
    redis.call('HDEL', KEYS[1], flat[at])
  elseif who == '' then
    gone[name] = tonumber(slice)
  else
    holders[name] = holders[name] or {}
    holders[name][who] = { tonumber(slice), tonumber(wanted) }
  end
end

local function put(name, who, slice, wanted, till)
  redis.call('HSET', KEYS[1], name .. SEP .. who, string.format('%.17g %.17g %.17g', slice, wanted, till))
end

local function fair_share(limit, wanted, others)
  local wants = { wanted }
  for _, held in pairs(others) do wants[#wants + 1] = held[2] end
  table.sort(wants)
  local rest, left = limit, #wants
  for _, want in ipairs(wants) do
    if want * left > rest then return math.max(0, math.min(wanted, rest / left)) end
    rest, left = rest - want, left - 1
  end
  return wanted
end

local who, leaves, told, longest = ARGV[1], ARGV[2] == 'leave', {}, 0
for at = 3, #ARGV, 8 do
  local name, lasts = ARGV[at], ARGV[at + 7] == '1'
  local limit, held, wanted = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local least, keeps, left = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
  local others = holders[name] or {}
  local known = others[who] ~= nil
  others[who] = nil
  longest = math.max(longest, keeps)
  if leaves then
    redis.call('HDEL', KEYS[1], name .. SEP .. who)
    if known and lasts then put(name, '', (gone[name] or 0) + held, 0, now + keeps) end
  else
    left = math.max(left, gone[name] or 0)
    if left > 0 then put(name, '', left, 0, now + keeps) end
    local elsewhere = 0
    for _, other in pairs(others) do elsewhere = elsewhere + other[1] end
    local fair = fair_share(limit - left, wanted, others)
    local slice = math.max(held, math.min(math.max(fair, least), limit - left - elsewhere))
    put(name, who, slice, wanted, now + keeps)
    for _, value in ipairs({ slice, fair, elsewhere, left }) do
      told[#told + 1] = string.format('%.17g', value)
    end
    told[#told + 1] = known and '1' or '0'
  end
end
redis.call('EXPIRE', KEYS[1], math.ceil(longest) + 60)
return told
"""
"""`AccountLeases` of `tenancy/limits/leases.py`, by the clock of Redis. A field is NAME and WHO, separated by character
31; an
empty WHO holds the usage of gateways that have left. Its value is lease, demand, and when both expire."""

CONNECTION_ERRORS = (OSError, TimeoutError, RedisLost, RedisLate)
"""Errors of a Redis that is unreachable. Others concern the coordinator alone: a missing permission, for one."""

SHA = sha1(SCRIPT.encode()).hexdigest()  # noqa: S324 - how Redis names scripts


class RedisQuotaCoordinator:
    """The coordinator of all gateways of one Redis."""

    def __init__(
        self, place: RedisLocation, *, say: EventLog, draw: Callable[[], float], answer_s: float = ANSWER_S
    ) -> None:
        self._place = place
        self._answer_s = answer_s
        self._say = say
        self._draw = draw
        self._client: RedisClient | None = None
        self._lost: asyncio.Future[None] | None = None
        """Set to the error that ended the current connection."""
        self._turns = asyncio.Semaphore(CONCURRENCY)

    @property
    def is_connected(self) -> bool:
        return self._client is not None

    async def lease(self, path: str, holder: str, asks: Sequence[LeaseRequest]) -> list[LeaseGrant]:
        reply = cast("list[bytes]", await self._run_script(path, holder, "ask", asks))
        if len(reply) != 5 * len(asks):
            raise CoordinatorUnavailable
        found = zip(*[iter(reply)] * 5, strict=True)
        return [LeaseGrant(float(s), float(f), float(e), float(g), known == b"1") for s, f, e, g, known in found]

    async def release(self, path: str, holder: str, asks: Sequence[LeaseRequest]) -> None:
        await self._run_script(path, holder, "leave", asks)

    @restarted("limits")
    async def run(self) -> None:
        """Keep connected until cancelled."""
        wait_s, is_away, clock = MIN_BACKOFF_S, False, asyncio.get_running_loop().time
        while True:
            began_s = clock()
            try:
                async with connect_redis(self._place, answer_s=self._answer_s) as client:
                    await self._stay(client)
            except Exception as error:  # noqa: BLE001 - redis-py also raises errors of other libraries
                raise_if_cancelled()
                if not is_away:
                    # The bridge of the host loses the same Redis, and warns of it for all workers.
                    level = "debug" if isinstance(error, CONNECTION_ERRORS) else "warning"
                    self._say(
                        level, "limit_coordinator_unavailable", redis=str(self._place), error=type(error).__name__
                    )
                is_away = True
            if clock() - began_s > MAX_BACKOFF_S:
                wait_s, is_away = MIN_BACKOFF_S, False
            await asyncio.sleep(wait_s * (0.5 + self._draw()))
            wait_s = min(MAX_BACKOFF_S, 2 * wait_s)

    async def _stay(self, client: RedisClient) -> None:
        """Serve requests on a connection. Raises the error that ends it."""
        async with asyncio.timeout(self._answer_s):
            await client.ping()
        raise_if_cancelled()
        lost = self._lost = asyncio.get_running_loop().create_future()
        self._client = client
        try:
            await lost
        finally:
            self._client = None

    async def _run_script(self, path: str, holder: str, verb: str, asks: Sequence[LeaseRequest]) -> object:
        client = self._client
        if client is None:
            raise CoordinatorUnavailable
        arguments: list[Any] = [f"{self._place.prefix}{KEY_PREFIX}{{{path}}}", holder, verb]
        for ask in asks:
            numbers = (ask.limit, ask.held, ask.wanted, ask.minimum, ask.keeps_s, ask.gone)
            arguments += [ask.name, *(f"{number:.17g}" for number in numbers), int(ask.lasts)]
        try:
            async with asyncio.timeout(self._answer_s), self._turns:
                try:
                    return await client.evalsha(SHA, 1, *arguments)
                except NoScriptError:
                    return await client.eval(SCRIPT, 1, *arguments)
        except Exception as error:
            raise_if_cancelled()
            self._client = None
            if self._lost is not None and not self._lost.done():
                self._lost.set_exception(error)
            raise CoordinatorUnavailable from error
