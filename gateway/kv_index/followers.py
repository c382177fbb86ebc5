"""Keeps a subscription per engine of the fleet: finds where each publishes, and notices when that changes.

One writer of the exact index. Knows pods as the workers tell them, and no request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import aiohttp
import zmq

from gateway.cluster.ipc_messages import PodTold
from gateway.config.exact import KvEvents
from gateway.kv_index.feed import Feed
from gateway.kv_index.sources import configured_sources, entries_by_pod, told_sources
from gateway.kv_index.subscriber import Sockets, Source, Subscriber
from gateway.observe.log import EventLog
from gateway.runtime.guard import restarted
from routing.precise.precise_index import ExactIndex

ASK_AGAIN_S = 10.0
"""Where a pod publishes may change with every restart."""

ASK_SOON_S = 1.0
"""After a question that was not answered, or a restart."""

ASK_WAIT_S = 3.0

MOST_AT_HAND = 64
"""Engines whose sockets are looked at before every answer: a microsecond each. More are read as the loop comes by."""


@dataclass(slots=True)
class PodFollowed:
    """One pod and its subscriptions."""

    told: PodTold
    task: asyncio.Task[None] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    subscribers: dict[str, tuple[Subscriber, asyncio.Task[None]]] = field(default_factory=dict)


class Followers:
    """One per warmth process."""

    def __init__(self, words: KvEvents, index: ExactIndex, say: EventLog) -> None:
        self.feeds: dict[str, Feed] = {}
        """By engine."""
        self.has_turned = True
        """Whether there may be other engines in `feeds`, or other trust in them, than whoever set it to False knows."""
        self._words = words
        self._index = index
        self._say = say
        self._pods: dict[str, PodFollowed] = {}
        self._group: asyncio.TaskGroup | None = None
        self._session: aiohttp.ClientSession | None = None
        self._sockets: Sockets | None = None

    def take_fleet(self, pods: dict[str, PodTold]) -> None:
        """These pods there are now."""
        for url in [url for url in self._pods if url not in pods]:
            self._remove(url)
        for url, told in pods.items():
            known = self._pods.get(url)
            if known is None:
                self._pods[url] = PodFollowed(told)
                self._start(self._pods[url])
            elif known.told != told:
                self._renew(known, told)

    def catch_up(self) -> None:
        """Take what engines have said by now, before somebody is told what they hold."""
        subscribers = [one for pod in self._pods.values() for one, _ in pod.subscribers.values()]
        for subscriber in subscribers if len(subscribers) <= MOST_AT_HAND else ():
            subscriber.drain()

    async def run(self) -> None:
        """Follow until cancelled."""
        timeout = aiohttp.ClientTimeout(total=ASK_WAIT_S)
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

    def _start(self, pod: PodFollowed) -> None:
        if self._group is not None:
            pod.task = self._group.create_task(self._watch(pod), name=f"follow KV events of {pod.told.url}")

    def _renew(self, pod: PodFollowed, told: PodTold) -> None:
        has_restarted = told.life > pod.told.life
        pod.told = told
        for engine in told.engines:
            if engine.name in self.feeds:
                if has_restarted:
                    self.feeds[engine.name].pod_restarted()
                self._index.follow(engine.name, engine.block_tokens)
        pod.wake.set()

    def _remove(self, url: str) -> None:
        pod = self._pods.pop(url)
        if pod.task is not None:
            pod.task.cancel()
        for name in list(pod.subscribers):
            self._unsubscribe(pod, name)

    @restarted("kv events")
    async def _watch(self, pod: PodFollowed) -> None:
        entries = entries_by_pod(self._words.sources)
        while True:
            entry = entries.get(pod.told.url)
            found = configured_sources(pod.told, entry) if entry is not None else await self._told(pod)
            self._subscribe(pod, found)
            pod.wake.clear()
            pause_s = ASK_AGAIN_S if found else ASK_SOON_S
            try:
                async with asyncio.timeout(pause_s):
                    await pod.wake.wait()
            except TimeoutError:
                continue

    async def _told(self, pod: PodFollowed) -> dict[str, Source]:
        if self._session is None:
            return {}
        found = await told_sources(pod.told, self._session)
        if found is None:
            # It does not answer now; whom we follow may be well all the same.
            return {name: subscriber.source for name, (subscriber, _) in pod.subscribers.items()}
        return found

    def _subscribe(self, pod: PodFollowed, found: dict[str, Source]) -> None:
        former = {name: self.feeds[name] for name, (one, _) in pod.subscribers.items() if found.get(name) != one.source}
        for name in former:
            self._unsubscribe(pod, name)
        blocks = {engine.name: engine.block_tokens for engine in pod.told.engines}
        for name, source in found.items():
            if name not in pod.subscribers and self._group is not None and self._sockets is not None:
                self._index.follow(name, blocks.get(name))
                subscriber = Subscriber(source, partial(self._feed, name), self._say, self._sockets)
                if name in former:
                    subscriber.feed.succeed(former[name])
                self.feeds[name] = subscriber.feed
                task = self._group.create_task(subscriber.run(), name=f"KV events of {name}")
                pod.subscribers[name] = subscriber, task
                self._say("info", "following KV events", engine=name, endpoint=source.endpoint)

    def _feed(self, name: str, ask: Callable[[int], bool]) -> Feed:
        return Feed(name, self._index, say=self._say, ask=ask, turned=self._turn)

    def _turn(self) -> None:
        self.has_turned = True

    def _unsubscribe(self, pod: PodFollowed, name: str) -> None:
        _, task = pod.subscribers.pop(name)
        task.cancel()
        self.feeds.pop(name, None)
        self._index.drop(name)
        self._turn()
