"""Lends slices out of Redis: one hash and one script an account, in one slot of a cluster, on stock Redis 5 and later.

Redis may be slow, hung, gone, emptied or failed over at any time. Whoever asks is told so at once or after `ANSWER_S`,
and while no connection stands nobody waits at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from hashlib import sha1
from typing import Any, cast

from redis.exceptions import ConnectionError as RedisLost
from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisLate

from gateway.cluster.redis_bridge import heed_cancel
from gateway.config.redis_location import RedisPlace
from gateway.limits.coordinator import LenderAway
from gateway.observe.log import EventLog
from gateway.runtime.guard import restarted
from gateway.runtime.redis_client import Client, connected
from tenancy.limits.leases import Ask, Granted

KEY = "hearth:quota:"

ANSWER_S = 0.2
"""A Redis that has not answered by then is as good as away: requests wait for it."""

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0

AT_ONCE = 16
"""Asks under way, each on a connection of its own."""

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
"""`Slices` of `tenancy/limits/leases.py`, by the clock of Redis. A field is NAME and WHO with a 31 between them, no WHO
for what those have used who are gone; its value is slice, wanted, and until when both count."""

LOSSES = (OSError, TimeoutError, RedisLost, RedisLate)
"""A Redis that is away. All else is wrong with the lender alone: it may not run the script, for one."""

SHA = sha1(SCRIPT.encode()).hexdigest()  # noqa: S324 - how Redis names scripts


class RedisLender:
    """One per worker that has a Redis."""

    def __init__(
        self, place: RedisPlace, *, say: EventLog, draw: Callable[[], float], answer_s: float = ANSWER_S
    ) -> None:
        self._place = place
        self._answer_s = answer_s
        self._say = say
        self._draw = draw
        self._client: Client | None = None
        self._lost: asyncio.Future[None] | None = None
        """Why it does not answer any more, once it does not."""
        self._turns = asyncio.Semaphore(AT_ONCE)

    @property
    def is_connected(self) -> bool:
        return self._client is not None

    async def ask(self, path: str, who: str, asks: Sequence[Ask]) -> list[Granted]:
        told = cast("list[bytes]", await self._run_script(path, who, "ask", asks))
        if len(told) != 5 * len(asks):
            raise LenderAway
        found = zip(*[iter(told)] * 5, strict=True)
        return [Granted(float(s), float(f), float(e), float(g), known == b"1") for s, f, e, g, known in found]

    async def leave(self, path: str, who: str, asks: Sequence[Ask]) -> None:
        await self._run_script(path, who, "leave", asks)

    @restarted("limits")
    async def run(self) -> None:
        """Keep connected until cancelled."""
        wait_s, is_away, clock = FIRST_WAIT_S, False, asyncio.get_running_loop().time
        while True:
            began_s = clock()
            try:
                async with connected(self._place, answer_s=self._answer_s) as client:
                    await self._stay(client)
            except Exception as error:  # noqa: BLE001 - not all of the library's errors are its own, and none may end us
                heed_cancel()
                if not is_away:
                    words = "Redis is away: limits go by what this gateway knows"
                    # The bridge of the host loses the same Redis, and warns of it for all workers.
                    level = "debug" if isinstance(error, LOSSES) else "warning"
                    self._say(level, words, redis=str(self._place), error=type(error).__name__)
                is_away = True
            if clock() - began_s > LONGEST_WAIT_S:
                wait_s, is_away = FIRST_WAIT_S, False
            await asyncio.sleep(wait_s * (0.5 + self._draw()))
            wait_s = min(LONGEST_WAIT_S, 2 * wait_s)

    async def _stay(self, client: Client) -> None:
        """Lend as long as it answers. Raises what ended that."""
        async with asyncio.timeout(self._answer_s):
            await client.ping()
        heed_cancel()
        lost = self._lost = asyncio.get_running_loop().create_future()
        self._client = client
        try:
            await lost
        finally:
            self._client = None

    async def _run_script(self, path: str, who: str, verb: str, asks: Sequence[Ask]) -> object:
        client = self._client
        if client is None:
            raise LenderAway
        words: list[Any] = [f"{self._place.prefix}{KEY}{{{path}}}", who, verb]
        for ask in asks:
            numbers = (ask.limit, ask.held, ask.wanted, ask.least, ask.keeps_s, ask.gone)
            words += [ask.name, *(f"{number:.17g}" for number in numbers), int(ask.lasts)]
        try:
            async with asyncio.timeout(self._answer_s), self._turns:
                try:
                    return await client.evalsha(SHA, 1, *words)
                except NoScriptError:
                    return await client.eval(SCRIPT, 1, *words)
        except Exception as error:
            heed_cancel()
            self._client = None
            if self._lost is not None and not self._lost.done():
                self._lost.set_exception(error)
            raise LenderAway from error
