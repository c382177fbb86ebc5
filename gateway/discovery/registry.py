"""Pods that agents on GPU nodes register in Redis: their keys are authoritative, their channel only makes it quick.

Redis may be slow, hung, gone, emptied or failed over at any time. While it does not answer, the last list stays in
force for `stale_ttl_s`; our probes still check each pod. The last record of an agent counts for its `ttl_s`. A missing
key means nothing, because an emptied Redis looks the same and the agent writes again one beat later.
`routing/pod_record.py` defines the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from operator import itemgetter
from typing import Any

from gateway.config.discovery import DiscoveredPod
from gateway.discovery.source import PodsCallback, ServerReport
from gateway.runtime.guard import raise_if_cancelled, restarted
from gateway.runtime.redis_client import RedisClient, connect_redis
from gateway.runtime.redis_location import RedisLocation
from routing.pod_record import (
    NO_READING,
    AgentRecord,
    InvalidRecord,
    NodeReading,
    RegisteredPod,
    RegistrationState,
    read_record,
    record_channel,
    record_keys_pattern,
)
from routing.pods import PodState

MAX_AGENTS = 4096
"""Bounds the memory that writers of this Redis can take."""


MAX_REGISTERED_PODS = 8192
"""Of all agents together: each pod is probed every second."""


@dataclass(frozen=True, slots=True)
class AgentLease:
    """The last record of an agent, and when it expires."""

    life: int
    beat: int
    ttl_s: float
    pods: tuple[DiscoveredPod, ...]
    """Empty after an agent has left, until it expires: a late older record must not restore its pods."""
    expires_s: float
    node: NodeReading = NO_READING
    registered: tuple[RegisteredPod, ...] = ()
    """The same pods as the agent registered them, with their settings and loads."""
    updated_s: float = 0.0


class AgentRegistry:
    """The agents and their pods. Pure: time is an argument."""

    def __init__(self, *, max_agents: int = MAX_AGENTS, max_pods: int = MAX_REGISTERED_PODS) -> None:
        self._leases: dict[str, AgentLease] = {}
        self._max_agents = max_agents
        self._max_pods = max_pods
        self._pods = 0

    def knows(self, agent: str) -> bool:
        return agent in self._leases

    def update(self, record: AgentRecord, now_s: float, *, left_s: float | None = None) -> bool:
        """Take an agent's record, unless a later one is known or a bound is reached (known agents keep their place).

        `left_s`: seconds until the record expires, if it may be old. Returns whether the agent's pods have changed.
        """
        known = self._leases.get(record.agent)
        if known is not None and known.life == record.life and known.beat >= record.beat:
            return False
        more = len(record.pods) - (len(known.pods) if known is not None else 0)
        if (known is None and len(self._leases) >= self._max_agents) or (
            more > 0 and self._pods + more > self._max_pods
        ):
            return False
        self._pods += more
        counts_s = record.ttl_s if left_s is None else min(left_s, record.ttl_s)
        found = tuple(map(_discovered, record.pods))
        self._leases[record.agent] = AgentLease(
            record.life, record.beat, record.ttl_s, found, now_s + counts_s, record.node, record.pods, now_s
        )
        return known is None or known.pods != found

    def expire(self, now_s: float) -> bool:
        """Drop expired agents. Returns whether there were any."""
        kept = {agent: lease for agent, lease in self._leases.items() if lease.expires_s > now_s}
        is_less, self._leases = len(kept) < len(self._leases), kept
        self._pods = sum(len(lease.pods) for lease in kept.values())
        return is_less

    def extend_leases(self, now_s: float) -> None:
        """After an outage of Redis, give every agent its full ttl to write again."""
        for agent, lease in self._leases.items():
            self._leases[agent] = replace(lease, expires_s=max(lease.expires_s, now_s + lease.ttl_s))

    def nodes(self) -> dict[str, NodeReading]:
        """Return the last reading of each agent's node that has one, by name of the agent."""
        return {agent: lease.node for agent, lease in self._leases.items() if lease.node != NO_READING}

    def servers(self) -> dict[str, ServerReport]:
        """Return the last report of each server, by the URL of its pod."""
        return {
            pod.url: ServerReport(agent, lease.updated_s, pod.settings, pod.loads, lease.node)
            for agent, lease in sorted(self._leases.items(), key=itemgetter(0), reverse=True)
            for pod in lease.registered
        }

    def pods(self) -> tuple[DiscoveredPod, ...]:
        """Return the pods of all agents; of a pod that several register, the first agent by name wins."""
        pods: dict[str, DiscoveredPod] = {}
        for _, lease in sorted(self._leases.items(), key=itemgetter(0)):
            for pod in lease.pods:
                pods.setdefault(pod.url, pod)
        return tuple(pods.values())


def _discovered(pod: RegisteredPod) -> DiscoveredPod:
    held = PodState.DRAINING if pod.state is RegistrationState.DRAINING else None
    return DiscoveredPod(pod.url, facts=pod.facts, takes_priority=pod.takes_priority, held=held)


LogFunction = Callable[..., None]


@dataclass(frozen=True, slots=True)
class PollIntervals:
    """How often Redis is read, in seconds."""

    poll_interval_s: float = 5.0
    """Between two reads of all keys."""
    expiry_interval_s: float = 1.0
    """Between two checks for expired agents."""
    response_timeout_s: float = 2.0
    """A Redis that has not answered after this time is away."""
    min_backoff_s: float = 0.1
    max_backoff_s: float = 5.0


MAX_KEYS = 4 * MAX_AGENTS
"""Maximum number of keys that are scanned."""


KEYS_PER_ROUND_TRIP = 256
"""Keys read in one round trip."""


class RegistrySource:
    """One per gateway. Calls `on_record` with every record received on the channel, for the load figures in it."""

    name = "redis"

    def __init__(
        self,
        place: RedisLocation,
        *,
        stale_ttl_s: float,
        log_event: LogFunction,
        clock: Callable[[], float],
        draw: Callable[[], float],
        on_record: Callable[[AgentRecord], object] = lambda _: None,
        pace: PollIntervals | None = None,
        warns: bool = True,
    ) -> None:
        """`warns`: False if another component or process of this host logs outages of the same Redis."""
        self._place = place
        self._levels = ("warning", "info") if warns else ("debug", "debug")
        """Log levels of an outage and of its end."""
        self._stale_ttl_s = stale_ttl_s
        self._log_event = log_event
        self._clock = clock
        self._draw = draw
        self._on_record = on_record
        self._pace = pace or PollIntervals()
        self._agents = AgentRegistry()
        self._away_since_s: float | None = None
        self._bad: dict[str, str] = {}
        """Agents whose last record was invalid, and why; logged once each."""
        self.trouble = ""

    def nodes(self) -> dict[str, NodeReading]:
        """Return the last reading of each agent's node, by name of the agent."""
        return self._agents.nodes()

    def servers(self) -> dict[str, ServerReport]:
        """Return the last report of each registered server, by the URL of its pod."""
        return self._agents.servers()

    async def follow(self, notify: PodsCallback) -> None:
        """Report all registered pods whenever they change, through outages of Redis, until cancelled."""
        wait_s = self._pace.min_backoff_s
        async with asyncio.TaskGroup() as group:
            group.create_task(self._drop_expired(notify), name="forget registered pods")
            while True:
                try:
                    async with connect_redis(self._place, answer_s=self._pace.response_timeout_s) as client:
                        await self._follow_redis(client, notify)
                except Exception as error:  # noqa: BLE001 - not all of the library's errors are its own, none may end us
                    raise_if_cancelled()
                    wait_s = wait_s if self._note_outage(error) else self._pace.min_backoff_s
                await asyncio.sleep(wait_s * (0.5 + self._draw()))
                wait_s = min(self._pace.max_backoff_s, 2 * wait_s)

    def _note_outage(self, error: Exception) -> bool:
        """Note an outage. Returns whether Redis was away before."""
        was_away = self._away_since_s is not None
        if not was_away:
            self._away_since_s = self._clock()
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            self.trouble = f"Redis is away ({type(error).__name__})"
            self._log_event(
                self._levels[0],
                "agent_registry_unavailable",
                redis=str(self._place),
                kept_for_s=self._stale_ttl_s,
                error=type(error).__name__,
            )
        return was_away

    @restarted("discovery")
    async def _drop_expired(self, notify: PodsCallback) -> None:
        """Drop expired agents; while Redis is away, drop all of them after `stale_ttl_s`."""
        while True:
            await asyncio.sleep(self._pace.expiry_interval_s)
            now_s = self._clock()
            if self._away_since_s is None:
                is_less = self._agents.expire(now_s)
            else:
                is_less = now_s - self._away_since_s > self._stale_ttl_s and self._agents.expire(inf)
            if is_less:
                notify(self._agents.pods())

    async def _follow_redis(self, client: RedisClient, notify: PodsCallback) -> None:
        """Read and listen until Redis fails. Raises the failure."""
        async with asyncio.TaskGroup() as group:
            if hasattr(client, "pubsub"):
                group.create_task(self._listen(client, notify), name="listen to agents")
            while True:
                await self._read_all(client)
                self._note_recovery()
                notify(self._agents.pods())
                await asyncio.sleep(self._pace.poll_interval_s)

    def _note_recovery(self) -> None:
        if self._away_since_s is None:
            return
        self._away_since_s, self.trouble = None, ""
        self._agents.extend_leases(self._clock())
        self._log_event(self._levels[1], "agent_registry_recovered", redis=str(self._place))

    async def _read_all(self, client: RedisClient) -> None:
        """Read the record of every agent. Raises if Redis does not answer in time."""
        async with asyncio.timeout(self._pace.response_timeout_s):
            found = client.scan_iter(match=record_keys_pattern(self._place.prefix), count=1000)
            keys: list[Any] = []
            async for key in found:
                keys.append(key)
                if len(keys) >= MAX_KEYS:
                    break
        raise_if_cancelled()
        if len(keys) > MAX_AGENTS:
            self._log_event("error", "agent_registry_full", agents=len(keys), followed=MAX_AGENTS)
        # Known agents come first, so that a flood of new names cannot displace them.
        keys = sorted(keys, key=lambda key: (not self._agents.knows(_agent_of(key)), key))[:MAX_AGENTS]
        for at in range(0, len(keys), KEYS_PER_ROUND_TRIP):
            await self._read(client, keys[at : at + KEYS_PER_ROUND_TRIP])

    async def _read(self, client: RedisClient, keys: list[Any]) -> None:
        pipeline = client.pipeline(transaction=False)
        for key in keys:
            pipeline.get(key)  # type: ignore[unused-awaitable]  # a pipeline only notes it
            pipeline.pttl(key)  # type: ignore[unused-awaitable]
        async with asyncio.timeout(self._pace.response_timeout_s):
            answers = await pipeline.execute()
        raise_if_cancelled()
        for agent, written, left_ms in zip(map(_agent_of, keys), answers[0::2], answers[1::2], strict=True):
            # A record that is read for the first time may be about to expire.
            left_s = None if self._agents.knows(agent) or left_ms < 0 else left_ms / 1000
            record = self._parse_record(agent, written) if written is not None else None
            if record is not None:
                self._agents.update(record, self._clock(), left_s=left_s)

    async def _listen(self, client: RedisClient, notify: PodsCallback) -> None:
        """Take records as they are published. Raises if Redis fails."""
        async with client.pubsub(ignore_subscribe_messages=True) as listening:
            await listening.subscribe(record_channel(self._place.prefix))
            while True:
                message = await listening.get_message(timeout=self._pace.poll_interval_s)
                raise_if_cancelled()
                if message is None or message.get("type") != "message":
                    continue
                self._take_message(message["data"], notify)

    def _take_message(self, written: bytes, notify: PodsCallback) -> None:
        record = self._parse_record("(by channel)", written)
        if record is None:
            return
        if self._agents.update(record, self._clock()):
            notify(self._agents.pods())
        self._on_record(record)

    def _parse_record(self, agent: str, written: bytes) -> AgentRecord | None:
        """Parse a record. Returns None if it is invalid, which is logged once."""
        try:
            record = read_record(written)
        except InvalidRecord as bad:
            if self._bad.get(agent) != str(bad) and len(self._bad) < MAX_AGENTS:
                self._bad[agent] = str(bad)
                self._log_event("warning", "agent_record_invalid", agent=agent, error=str(bad))
            return None
        self._bad.pop(agent, None)
        return record


def _agent_of(key: bytes | str) -> str:
    return (key.decode("utf-8", "replace") if isinstance(key, bytes) else key).rpartition(":")[2]
