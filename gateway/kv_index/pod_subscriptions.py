"""Keeps one subscription to KV events per engine of the fleet.

Where an engine publishes is configured, or reported by its pod at `/kv_event_sources`. vLLM's rule: a publisher whose
address has a wildcard, or is `ipc://`, binds there; otherwise it connects to that address, and the subscriber binds. A
data-parallel rank is added to the port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

import aiohttp
import msgspec
import zmq

from gateway.config.kv_events import KvEventsConfig, KvEventSource
from gateway.kv_index.event_feed import EventFeed
from gateway.kv_index.subscriber import EventEndpoint, EventSubscriber, ZmqContext
from gateway.replica_sync.ipc_messages import PodUpdate
from gateway.runtime.event_log import EventLog, engine_fields
from gateway.runtime.guard import restarted
from routing.precise.precise_index import PreciseIndex

MAX_ANSWER_BYTES = 1 << 20


class _Publisher(msgspec.Struct):
    """The publisher of one rank as its pod reports it, with its actual port."""

    enable_kv_cache_events: bool = False
    publisher: str = ""
    endpoint: str = ""
    replay_endpoint: str | None = None
    topic: str = ""


def configured_endpoints(pod: PodUpdate, entry: KvEventSource) -> dict[str, EventEndpoint]:
    """Engine to source, for a pod whose publisher is configured."""
    host = _host_of(pod.url)
    found = {}
    for engine in pod.engines:
        endpoint = _at_rank(entry.endpoint, engine.rank)
        replay = _at_rank(entry.replay_endpoint, engine.rank) if entry.replay_endpoint else None
        binds = not _publisher_binds(entry.endpoint) and _host_of(entry.endpoint) != host
        found[engine.name] = EventEndpoint(
            endpoint if binds else _reachable(endpoint, host),
            _reachable(replay, host) if replay else None,
            entry.topic,
            bind=binds,
        )
    return found


async def reported_endpoints(pod: PodUpdate, session: aiohttp.ClientSession) -> dict[str, EventEndpoint] | None:
    """Ask a pod for its sources, by engine: empty where it publishes nothing, None where it does not answer."""
    try:
        async with session.get(f"{pod.url}/kv_event_sources", allow_redirects=False) as answer:
            if answer.status != 200:
                return {} if answer.status in (404, 405) else None
            publishers = msgspec.json.decode(await answer.content.read(MAX_ANSWER_BYTES), type=dict[str, _Publisher])
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError):
        return None
    return parse_endpoints(pod, publishers)


def parse_endpoints(pod: PodUpdate, publishers: Mapping[str, _Publisher]) -> dict[str, EventEndpoint]:
    """Engine to source, from the publishers that a pod reports by rank."""
    host = _host_of(pod.url)
    found = {}
    for engine in pod.engines:
        one = publishers.get(str(engine.rank or 0))
        if one is not None and one.enable_kv_cache_events and one.publisher == "zmq":
            replay = _reachable(one.replay_endpoint, host) if one.replay_endpoint else None
            found[engine.name] = EventEndpoint(_reachable(one.endpoint, host), replay, one.topic)
    return found


def entries_by_pod(entries: Sequence[KvEventSource]) -> dict[str, KvEventSource]:
    """The configured sources by pod URL."""
    return {entry.pod: entry for entry in entries}


def _publisher_binds(endpoint: str) -> bool:
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def _reachable(endpoint: str, host: str) -> str:
    """An endpoint with the pod's host in place of a wildcard."""
    for wildcard in ("*", "0.0.0.0", "[::]"):  # noqa: S104 - looked for, not bound
        endpoint = endpoint.replace(f"//{wildcard}:", f"//{host}:")
    return endpoint


def _at_rank(endpoint: str, rank: int | None) -> str:
    if not rank or not endpoint.startswith("tcp://"):
        return endpoint
    start, _, port = endpoint.rpartition(":")
    return f"{start}:{int(port) + rank}"


def _host_of(url: str) -> str:
    host = urlsplit(url.replace("//*:", "//0.0.0.0:")).hostname or ""
    return f"[{host}]" if ":" in host else host


POLL_S = 10.0
"""Interval of asking a pod for its sources: they may change with every restart."""

RETRY_S = 1.0
"""The interval while a pod reports no source."""

ANSWER_S = 3.0

MAX_DRAINED = 64
"""Up to this many sockets are read before every lookup, at a microsecond each; more are read by the loop alone."""


@dataclass(slots=True)
class FollowedPod:
    """One pod and its subscriptions."""

    latest: PodUpdate
    task: asyncio.Task[None] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    subscribers: dict[str, tuple[EventSubscriber, asyncio.Task[None]]] = field(default_factory=dict)


class PodSubscriptions:
    """The subscriptions of one index process: the only writer of the precise prefix index."""

    def __init__(self, config: KvEventsConfig, index: PreciseIndex, log_event: EventLog) -> None:
        self.feeds: dict[str, EventFeed] = {}
        """By engine name."""
        self.has_changed = True
        """Whether `feeds` or the trust in them may have changed since a reader set this to False."""
        self._config = config
        self._index = index
        self._log_event = log_event
        self._pods: dict[str, FollowedPod] = {}
        self._group: asyncio.TaskGroup | None = None
        self._session: aiohttp.ClientSession | None = None
        self._sockets: ZmqContext | None = None

    def follow(self, pods: dict[str, PodUpdate]) -> None:
        """Follow these pods, by URL, and no others."""
        for url in [url for url in self._pods if url not in pods]:
            self._remove(url)
        for url, update in pods.items():
            known = self._pods.get(url)
            if known is None:
                self._pods[url] = FollowedPod(update)
                self._start(self._pods[url])
            elif known.latest != update:
                self._renew(known, update)

    def drain(self) -> None:
        """Apply the events that have arrived, before a lookup."""
        subscribers = [one for pod in self._pods.values() for one, _ in pod.subscribers.values()]
        for subscriber in subscribers if len(subscribers) <= MAX_DRAINED else ():
            subscriber.drain()

    async def run(self) -> None:
        """Follow until cancelled."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        connector = aiohttp.TCPConnector(force_close=True)
        with zmq.Context() as sockets:
            async with aiohttp.ClientSession(timeout=timeout, connector=connector, trust_env=False) as session:
                self._session, self._sockets = session, sockets
                async with asyncio.TaskGroup() as group:
                    self._group = group
                    for pod in self._pods.values():
                        self._start(pod)
                    await asyncio.get_running_loop().create_future()

    # -- one pod -------------------------------------------------------------------------------------------------------

    def _start(self, pod: FollowedPod) -> None:
        if self._group is not None:
            pod.task = self._group.create_task(self._watch(pod), name=f"follow KV events of {pod.latest.url}")

    def _renew(self, pod: FollowedPod, update: PodUpdate) -> None:
        has_restarted = update.life > pod.latest.life
        pod.latest = update
        for engine in update.engines:
            if engine.name in self.feeds:
                if has_restarted:
                    self.feeds[engine.name].note_pod_restart()
                self._index.add_engine(engine.name, engine.block_tokens)
        pod.wake.set()

    def _remove(self, url: str) -> None:
        pod = self._pods.pop(url)
        if pod.task is not None:
            pod.task.cancel()
        for name in list(pod.subscribers):
            self._unsubscribe(pod, name)

    @restarted("kv events")
    async def _watch(self, pod: FollowedPod) -> None:
        entries = entries_by_pod(self._config.sources)
        while True:
            entry = entries.get(pod.latest.url)
            found = configured_endpoints(pod.latest, entry) if entry is not None else await self._reported(pod)
            self._subscribe(pod, found)
            pod.wake.clear()
            pause_s = POLL_S if found else RETRY_S
            try:
                async with asyncio.timeout(pause_s):
                    await pod.wake.wait()
            except TimeoutError:
                continue

    async def _reported(self, pod: FollowedPod) -> dict[str, EventEndpoint]:
        if self._session is None:
            return {}
        found = await reported_endpoints(pod.latest, self._session)
        if found is None:
            # The pod does not answer now; its publishers may work all the same.
            return {name: subscriber.source for name, (subscriber, _) in pod.subscribers.items()}
        return found

    def _subscribe(self, pod: FollowedPod, found: dict[str, EventEndpoint]) -> None:
        former = {name: self.feeds[name] for name, (one, _) in pod.subscribers.items() if found.get(name) != one.source}
        for name in former:
            self._unsubscribe(pod, name)
        blocks = {engine.name: engine.block_tokens for engine in pod.latest.engines}
        for name, source in found.items():
            if name not in pod.subscribers and self._group is not None and self._sockets is not None:
                self._index.add_engine(name, blocks.get(name))
                subscriber = EventSubscriber(source, partial(self._feed, name), self._log_event, self._sockets)
                if name in former:
                    subscriber.feed.take_over(former[name])
                self.feeds[name] = subscriber.feed
                task = self._group.create_task(subscriber.run(), name=f"KV events of {name}")
                pod.subscribers[name] = subscriber, task
                self._log_event("info", "kv_events_subscribed", **engine_fields(name), endpoint=source.endpoint)

    def _feed(self, name: str, ask: Callable[[int], bool]) -> EventFeed:
        return EventFeed(name, self._index, log_event=self._log_event, ask=ask, turned=self._note_change)

    def _note_change(self) -> None:
        self.has_changed = True

    def _unsubscribe(self, pod: FollowedPod, name: str) -> None:
        _, task = pod.subscribers.pop(name)
        task.cancel()
        self.feeds.pop(name, None)
        self._index.remove_engine(name)
        self._note_change()
