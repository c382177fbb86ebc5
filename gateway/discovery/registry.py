"""Pods as the agents on GPU nodes register them in Redis: their keys are the truth, their channel makes it quick.

Redis may be slow, hung, gone, emptied or failed over at any time. While it cannot be asked the last list stands, for
`keep_s`; how each pod is, our own probes know all the while. `roll.py` decides what counts, `record.py` is the shape.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from gateway.config.redis_location import RedisPlace
from gateway.discovery.record import BadRecord, Record, channel, keys_pattern, read_record
from gateway.discovery.roll import MOST_AGENTS, Roll
from gateway.discovery.source import Tell
from gateway.runtime.guard import restarted
from gateway.runtime.redis_client import Client, connected, heed_cancel

Say = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Pace:
    """In seconds."""

    poll_s: float = 5.0
    """Between two looks at all keys."""
    tick_s: float = 1.0
    """How much later than it should an agent may be forgotten."""
    answer_s: float = 2.0
    """A Redis that has not answered by then is away."""
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0


MOST_KEYS = 4 * MOST_AGENTS
"""That are looked through for those of agents."""

AT_ONCE = 256
"""Keys read with one round trip."""


class Registry:
    """One per gateway. `heard` is called with every record that comes by channel: it may hold figures of load."""

    name = "redis"

    def __init__(
        self,
        place: RedisPlace,
        *,
        keep_s: float,
        say: Say,
        clock: Callable[[], float],
        draw: Callable[[], float],
        heard: Callable[[Record], object] = lambda _: None,
        pace: Pace | None = None,
        warns: bool = True,
    ) -> None:
        """`warns`: False where another part or process of this host warns of the same Redis."""
        self._place = place
        self._levels = ("warning", "info") if warns else ("debug", "debug")
        """At which a loss is logged, and a return."""
        self._keep_s = keep_s
        self._say = say
        self._clock = clock
        self._draw = draw
        self._heard = heard
        self._pace = pace or Pace()
        self._roll = Roll()
        self._away_since_s: float | None = None
        self._bad: dict[str, str] = {}
        """Agents whose last record could not be read, and why; said once each."""
        self.trouble = ""

    async def follow(self, tell: Tell) -> None:
        """Tell all registered pods, and go on telling while Redis comes and goes."""
        wait_s = self._pace.first_wait_s
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_count(tell), name="forget registered pods")
            while True:
                try:
                    async with connected(self._place, answer_s=self._pace.answer_s) as client:
                        await self._stay(client, tell)
                except Exception as error:  # noqa: BLE001 - not all of the library's errors are its own, none may end us
                    heed_cancel()
                    wait_s = wait_s if self._note_away(error) else self._pace.first_wait_s
                await asyncio.sleep(wait_s * (0.5 + self._draw()))
                wait_s = min(self._pace.longest_wait_s, 2 * wait_s)

    def _note_away(self, error: Exception) -> bool:
        """Whether it was away before."""
        was_away = self._away_since_s is not None
        if not was_away:
            self._away_since_s = self._clock()
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            self.trouble = f"Redis is away ({type(error).__name__})"
            words = "Redis is away: the last list of registered pods stands"
            self._say(self._levels[0], words, redis=str(self._place), keep_s=self._keep_s, error=type(error).__name__)
        return was_away

    @restarted("discovery")
    async def _keep_count(self, tell: Tell) -> None:
        """Forget agents that have fallen silent; while Redis is away, all of them at once and late."""
        while True:
            await asyncio.sleep(self._pace.tick_s)
            now_s = self._clock()
            if self._away_since_s is None:
                is_less = self._roll.expire(now_s)
            else:
                is_less = now_s - self._away_since_s > self._keep_s and self._roll.expire(inf)
            if is_less:
                tell(self._roll.found())

    async def _stay(self, client: Client, tell: Tell) -> None:
        """Read and listen until Redis fails us. Raises what ended it."""
        async with asyncio.TaskGroup() as group:
            if hasattr(client, "pubsub"):
                group.create_task(self._listen(client, tell), name="listen to agents")
            while True:
                await self._read_all(client)
                self._note_back()
                tell(self._roll.found())
                await asyncio.sleep(self._pace.poll_s)

    def _note_back(self) -> None:
        if self._away_since_s is None:
            return
        self._away_since_s, self.trouble = None, ""
        self._roll.wait_on(self._clock())
        self._say(self._levels[1], "Redis is back: reading registered pods", redis=str(self._place))

    async def _read_all(self, client: Client) -> None:
        """Every agent's record. Raises where Redis does not answer in time."""
        async with asyncio.timeout(self._pace.answer_s):
            found = client.scan_iter(match=keys_pattern(self._place.prefix), count=1000)
            keys: list[Any] = []
            async for key in found:
                keys.append(key)
                if len(keys) >= MOST_KEYS:
                    break
        heed_cancel()
        if len(keys) > MOST_AGENTS:
            self._say("error", "more agents in Redis than we follow", agents=len(keys), followed=MOST_AGENTS)
        # A flood of new names must not displace who is known.
        keys = sorted(keys, key=lambda key: (not self._roll.knows(_agent_of(key)), key))[:MOST_AGENTS]
        for at in range(0, len(keys), AT_ONCE):
            await self._read(client, keys[at : at + AT_ONCE])

    async def _read(self, client: Client, keys: list[Any]) -> None:
        asking = client.pipeline(transaction=False)
        for key in keys:
            asking.get(key)  # type: ignore[unused-awaitable]  # a pipeline only notes it
            asking.pttl(key)  # type: ignore[unused-awaitable]
        async with asyncio.timeout(self._pace.answer_s):
            said = await asking.execute()
        heed_cancel()
        for agent, written, left_ms in zip(map(_agent_of, keys), said[0::2], said[1::2], strict=True):
            # A record that we see for the first time may be almost as old as it may become.
            left_s = None if self._roll.knows(agent) or left_ms < 0 else left_ms / 1000
            record = self._legible(agent, written) if written is not None else None
            if record is not None:
                self._roll.take(record, self._clock(), left_s=left_s)

    async def _listen(self, client: Client, tell: Tell) -> None:
        """Take what agents say as they say it. Raises where Redis fails us."""
        async with client.pubsub(ignore_subscribe_messages=True) as listening:
            await listening.subscribe(channel(self._place.prefix))
            while True:
                message = await listening.get_message(timeout=self._pace.poll_s)
                heed_cancel()
                if message is None or message.get("type") != "message":
                    continue
                self._hear(message["data"], tell)

    def _hear(self, written: bytes, tell: Tell) -> None:
        record = self._legible("(by channel)", written)
        if record is None:
            return
        if self._roll.take(record, self._clock()):
            tell(self._roll.found())
        self._heard(record)

    def _legible(self, agent: str, written: bytes) -> Record | None:
        """The record, where it can be read; else its fault goes into the log once."""
        try:
            record = read_record(written)
        except BadRecord as bad:
            if self._bad.get(agent) != str(bad) and len(self._bad) < MOST_AGENTS:
                self._bad[agent] = str(bad)
                self._say("warning", "an agent's record cannot be read", agent=agent, why=str(bad))
            return None
        self._bad.pop(agent, None)
        return record


def _agent_of(key: bytes | str) -> str:
    return (key.decode("utf-8", "replace") if isinstance(key, bytes) else key).rpartition(":")[2]
