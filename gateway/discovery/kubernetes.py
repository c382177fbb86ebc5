"""Pods of one Kubernetes namespace: selected by labels, by a service's EndpointSlices, or by an InferencePool.

Own list and watch over HTTP, no client library: see docs/adr/0029-kubernetes-client.md. While the API server does not
answer, its last state stays in force; our own probes still check each pod. Each scope holds the reflections it needs,
and finds pods in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import aiohttp

from gateway.config.discovery import Found, KubernetesPlace
from gateway.discovery.aggregator import merged
from gateway.discovery.kubernetes_api import Account, Api, Ground, Kind, Pace, Reflection, Say
from gateway.discovery.kubernetes_objects import (
    EndpointSlice,
    InferencePool,
    Sight,
    found_in_slices,
    read_node,
    read_pod,
    read_pool,
    read_slice,
    selector_of,
)
from gateway.discovery.source import Tell
from routing.facts import PodFacts

Nodes = Mapping[str, PodFacts]
"""Topology facts of nodes, by name."""


class Scope(Protocol):
    """Some pods of a namespace."""

    def is_whole(self) -> bool:
        """Return whether everything has been listed at least once."""
        ...

    def renew(self) -> None:
        """Start and stop the reflections that depend on objects read so far."""
        ...

    def found(self, nodes: Nodes) -> Iterator[Found]: ...


class BySelector:
    """Pods that match a label selector."""

    def __init__(self, ground: Ground, place: KubernetesPlace, selector: str) -> None:
        self._place = place
        self._pods = pods_of(ground, place, selector)

    def is_whole(self) -> bool:
        return self._pods.is_whole

    def renew(self) -> None:
        """Do nothing: no reflection depends on pods."""

    def found(self, nodes: Nodes) -> Iterator[Found]:
        for sight in self._pods.held.values():
            yield sight.found(self._place.scheme, sight.port(self._place.port), None, nodes)


class ByService:
    """The endpoints of a service, from its EndpointSlices."""

    def __init__(self, ground: Ground, place: KubernetesPlace, service: str) -> None:
        self._place = place
        path = f"/apis/discovery.k8s.io/v1/namespaces/{ground.namespace}/endpointslices"
        query = {"labelSelector": f"kubernetes.io/service-name={service}"}
        self._slices: Reflection[EndpointSlice] = ground.begin(Kind(path, query, read_slice))

    def is_whole(self) -> bool:
        return self._slices.is_whole

    def renew(self) -> None:
        """Do nothing: no reflection depends on slices."""

    def found(self, nodes: Nodes) -> Iterator[Found]:
        yield from found_in_slices(self._slices.held.values(), self._place, nodes)


class ByPool:
    """The pods that an InferencePool selects; each target port is an engine."""

    def __init__(self, ground: Ground, place: KubernetesPlace, name: str) -> None:
        self._ground = ground
        self._place = place
        self._name = name
        path = f"/apis/inference.networking.k8s.io/v1/namespaces/{ground.namespace}/inferencepools"
        query = {"fieldSelector": f"metadata.name={name}"}
        self._pools: Reflection[InferencePool] = ground.begin(Kind(path, query, read_pool))
        self._selector: str | None = None
        self._pods: Reflection[Sight] | None = None
        self._next: Reflection[Sight] | None = None
        """Pods of a changed selector, until they have been listed."""

    def is_whole(self) -> bool:
        if not self._pools.is_whole:
            return False
        return self._pool is None or (self._pods is not None and self._pods.is_whole)

    def renew(self) -> None:
        """Follow the pods of the current selector; those of the previous one stay until these are listed."""
        selector = selector_of(self._pool) if self._pool else None
        if selector is not None and selector != self._selector:
            if self._next is not None:
                self._ground.end(self._next)
            self._next, self._selector = pods_of(self._ground, self._place, selector), selector
        if self._next is not None and (self._next.is_whole or self._pods is None):
            if self._pods is not None:
                self._ground.end(self._pods)
            self._pods, self._next = self._next, None

    def found(self, nodes: Nodes) -> Iterator[Found]:
        for sight in self._pods.held.values() if self._pods and self._pool else ():
            for port in self._pool.spec.target_ports if self._pool else ():
                yield sight.found(self._place.scheme, port.number, self._name, nodes)

    @property
    def _pool(self) -> InferencePool | None:
        return self._pools.held.get(self._name)


def pods_of(ground: Ground, place: KubernetesPlace, selector: str) -> Reflection[Sight]:
    """Start a reflection of the pods that match a selector."""
    path = f"/api/v1/namespaces/{ground.namespace}/pods"
    return ground.begin(Kind(path, {"labelSelector": selector}, partial(read_pod, place=place)))


def scopes_of(ground: Ground, place: KubernetesPlace) -> list[Scope]:
    """Start all scopes that the configuration names."""
    scopes: list[Scope] = [ByPool(ground, place, name) for name in place.inference_pools]
    if place.selector:
        scopes.append(BySelector(ground, place, place.selector))
    if place.service:
        scopes.append(ByService(ground, place, place.service))
    return scopes


class Kubernetes:
    """One per configured namespace."""

    def __init__(
        self,
        place: KubernetesPlace,
        *,
        say: Say,
        clock: Callable[[], float],
        draw: Callable[[], float],
        pace: Pace | None = None,
    ) -> None:
        """Raises `Refused` outside a cluster if no API server is configured."""
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
        """Report all pods whenever any object has changed, until cancelled."""
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
    """Merge the pods of all scopes, sorted by URL."""
    pods = merged(scope.found(nodes.held if nodes else {}) for scope in scopes)
    return tuple(pods[url] for url in sorted(pods))
