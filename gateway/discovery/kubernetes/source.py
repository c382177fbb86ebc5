"""Pods of one namespace as a source: what all its scopes find, told when any object has changed.

Own list and watch over HTTP, no client library: see DECISIONS.md. While the API server cannot be asked, what it said
last stands; how each pod is, our own probes know all the while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import aiohttp

from gateway.config.discovery import Found, KubernetesPlace
from gateway.discovery.census import merged
from gateway.discovery.kubernetes.api import Account, Api
from gateway.discovery.kubernetes.pods import read_node
from gateway.discovery.kubernetes.reflection import Ground, Kind, Pace, Reflection, Say
from gateway.discovery.kubernetes.scopes import Scope, scopes_of
from gateway.discovery.source import Tell
from routing.facts import PodFacts


class Kubernetes:
    """One per place."""

    def __init__(
        self,
        place: KubernetesPlace,
        *,
        say: Say,
        clock: Callable[[], float],
        draw: Callable[[], float],
        pace: Pace | None = None,
    ) -> None:
        """Raises `Refused` where we run in no cluster and no API server is named."""
        self._account = Account.of(place)
        self.name = f"kubernetes:{self._account.namespace}"
        self._place = place
        self._say, self._clock, self._draw = say, clock, draw
        self._pace = pace or Pace()
        self._reflections: list[Reflection[Any]] = []

    @property
    def trouble(self) -> str:
        return next((each.trouble for each in self._reflections if each.trouble), "")

    async def follow(self, tell: Tell) -> None:
        """Tell all pods whenever any object has changed, until cancelled."""
        connector, news = aiohttp.TCPConnector(limit=0), asyncio.Event()
        self._reflections.clear()
        async with aiohttp.ClientSession(connector=connector, trust_env=False) as session, asyncio.TaskGroup() as group:
            api, means = Api(self._account, session), (self._say, self._clock, self._draw, self._pace)
            ground = Ground(api, group, news.set, *means, self._reflections)
            scopes, nodes = scopes_of(ground, self._place), self._nodes(ground)
            while True:
                await news.wait()
                news.clear()
                for scope in scopes:
                    scope.renew()
                if all(scope.is_whole() for scope in scopes) and (nodes is None or nodes.is_whole):
                    tell(_found(scopes, nodes))
                await asyncio.sleep(self._pace.gather_s)

    def _nodes(self, ground: Ground) -> Reflection[PodFacts] | None:
        if not self._place.nodes:
            return None
        return ground.begin(Kind("/api/v1/nodes", {}, partial(read_node, place=self._place)))


def _found(scopes: list[Scope], nodes: Reflection[PodFacts] | None) -> tuple[Found, ...]:
    """Each pod once, in the order of their URLs."""
    pods = merged(scope.found(nodes.held if nodes else {}) for scope in scopes)
    return tuple(pods[url] for url in sorted(pods))
