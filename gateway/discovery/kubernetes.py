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

from gateway.config.discovery import DiscoveredPod, KubernetesSourceConfig
from gateway.discovery.aggregator import merge_pods
from gateway.discovery.kubernetes_api import (
    KubernetesApi,
    LogFunction,
    Reflector,
    ReflectorContext,
    ReflectorIntervals,
    ResourceQuery,
    ServiceAccount,
)
from gateway.discovery.kubernetes_objectives import InferenceRules, RulesScope
from gateway.discovery.kubernetes_objects import (
    EndpointSlice,
    InferencePool,
    ObservedPod,
    label_selector,
    pods_of_slices,
    read_node,
    read_pod,
    read_pool,
    read_slice,
)
from gateway.discovery.source import PodsCallback
from routing.facts import PodFacts

Nodes = Mapping[str, PodFacts]
"""Topology facts of nodes, by name."""


class PodScope(Protocol):
    """Some pods of a namespace."""

    def is_complete(self) -> bool:
        """Return whether everything has been listed at least once."""
        ...

    def refresh(self) -> None:
        """Start and stop the reflections that depend on objects read so far."""
        ...

    def pods(self, nodes: Nodes) -> Iterator[DiscoveredPod]: ...


class SelectorScope:
    """Pods that match a label selector."""

    def __init__(self, ground: ReflectorContext, place: KubernetesSourceConfig, selector: str) -> None:
        self._place = place
        self._pods = reflect_pods(ground, place, selector)

    def is_complete(self) -> bool:
        return self._pods.is_complete_list

    def refresh(self) -> None:
        """Do nothing: no reflection depends on pods."""

    def pods(self, nodes: Nodes) -> Iterator[DiscoveredPod]:
        for pod in self._pods.held.values():
            yield pod.to_discovered_pod(self._place.scheme, pod.port(self._place.port), None, nodes)


class ServiceScope:
    """The endpoints of a service, from its EndpointSlices."""

    def __init__(self, ground: ReflectorContext, place: KubernetesSourceConfig, service: str) -> None:
        self._place = place
        path = f"/apis/discovery.k8s.io/v1/namespaces/{ground.namespace}/endpointslices"
        query = {"labelSelector": f"kubernetes.io/service-name={service}"}
        self._slices: Reflector[EndpointSlice] = ground.start_reflector(ResourceQuery(path, query, read_slice))

    def is_complete(self) -> bool:
        return self._slices.is_complete_list

    def refresh(self) -> None:
        """Do nothing: no reflection depends on slices."""

    def pods(self, nodes: Nodes) -> Iterator[DiscoveredPod]:
        yield from pods_of_slices(self._slices.held.values(), self._place, nodes)


class InferencePoolScope:
    """The pods that an InferencePool selects; each target port is an engine."""

    def __init__(self, ground: ReflectorContext, place: KubernetesSourceConfig, name: str) -> None:
        self._ground = ground
        self._place = place
        self._name = name
        path = f"/apis/inference.networking.k8s.io/v1/namespaces/{ground.namespace}/inferencepools"
        query = {"fieldSelector": f"metadata.name={name}"}
        self._pools: Reflector[InferencePool] = ground.start_reflector(ResourceQuery(path, query, read_pool))
        self._selector: str | None = None
        self._pods: Reflector[ObservedPod] | None = None
        self._next: Reflector[ObservedPod] | None = None
        """Pods of a changed selector, until they have been listed."""

    def is_complete(self) -> bool:
        if not self._pools.is_complete_list:
            return False
        return self._pool is None or (self._pods is not None and self._pods.is_complete_list)

    def refresh(self) -> None:
        """Follow the pods of the current selector; those of the previous one stay until these are listed."""
        selector = label_selector(self._pool) if self._pool else None
        if selector is not None and selector != self._selector:
            if self._next is not None:
                self._ground.stop_reflector(self._next)
            self._next, self._selector = reflect_pods(self._ground, self._place, selector), selector
        if self._next is not None and (self._next.is_complete_list or self._pods is None):
            if self._pods is not None:
                self._ground.stop_reflector(self._pods)
            self._pods, self._next = self._next, None

    def pods(self, nodes: Nodes) -> Iterator[DiscoveredPod]:
        for pod in self._pods.held.values() if self._pods and self._pool else ():
            for port in self._pool.spec.target_ports if self._pool else ():
                yield pod.to_discovered_pod(self._place.scheme, port.number, self._name, nodes)

    @property
    def _pool(self) -> InferencePool | None:
        return self._pools.held.get(self._name)


def reflect_pods(ground: ReflectorContext, place: KubernetesSourceConfig, selector: str) -> Reflector[ObservedPod]:
    """Start a reflection of the pods that match a selector."""
    path = f"/api/v1/namespaces/{ground.namespace}/pods"
    return ground.start_reflector(ResourceQuery(path, {"labelSelector": selector}, partial(read_pod, place=place)))


def start_scopes(ground: ReflectorContext, place: KubernetesSourceConfig) -> list[PodScope]:
    """Start all scopes that the configuration names."""
    scopes: list[PodScope] = [InferencePoolScope(ground, place, name) for name in place.inference_pools]
    if place.selector:
        scopes.append(SelectorScope(ground, place, place.selector))
    if place.service:
        scopes.append(ServiceScope(ground, place, place.service))
    return scopes


class KubernetesSource:
    """One per configured namespace."""

    def __init__(
        self,
        place: KubernetesSourceConfig,
        *,
        log_event: LogFunction,
        clock: Callable[[], float],
        draw: Callable[[], float],
        pace: ReflectorIntervals | None = None,
        rules: InferenceRules | None = None,
    ) -> None:
        """Raises `ApiError` outside a cluster if no API server is configured.

        `rules`: receives objectives and rewrites, if the configuration names their API group.
        """
        self._account = ServiceAccount.from_config(place)
        self.name = f"kubernetes:{self._account.namespace}"
        self._place = place
        self._log_event, self._clock, self._draw = log_event, clock, draw
        self._pace = pace or ReflectorIntervals()
        self._rules = rules
        self._reflections: list[Reflector[Any]] = []

    @property
    def trouble(self) -> str:
        return next((each.trouble for each in self._reflections if each.trouble), "")

    async def follow(self, notify: PodsCallback) -> None:
        """Report all pods whenever any object has changed, until cancelled."""
        connector, changed = aiohttp.TCPConnector(limit=0), asyncio.Event()
        self._reflections.clear()
        async with aiohttp.ClientSession(connector=connector, trust_env=False) as session, asyncio.TaskGroup() as group:
            api, means = KubernetesApi(self._account, session), (self._log_event, self._clock, self._draw, self._pace)
            ground = ReflectorContext(api, group, changed.set, *means, self._reflections)
            scopes, nodes = start_scopes(ground, self._place), self._nodes(ground)
            group_name, rules = self._place.objectives, self._rules
            scope_of_rules = (
                RulesScope(ground, group_name, self._place.inference_pools) if group_name and rules else None
            )
            while True:
                await changed.wait()
                changed.clear()
                if scope_of_rules is not None and rules is not None:
                    scope_of_rules.report(self, rules)
                for scope in scopes:
                    scope.refresh()
                if all(scope.is_complete() for scope in scopes) and (nodes is None or nodes.is_complete_list):
                    notify(_found(scopes, nodes))
                await asyncio.sleep(self._pace.debounce_s)

    def _nodes(self, ground: ReflectorContext) -> Reflector[PodFacts] | None:
        if not self._place.nodes:
            return None
        return ground.start_reflector(ResourceQuery("/api/v1/nodes", {}, partial(read_node, place=self._place)))


def _found(scopes: list[PodScope], nodes: Reflector[PodFacts] | None) -> tuple[DiscoveredPod, ...]:
    """Merge the pods of all scopes, sorted by URL."""
    pods = merge_pods(scope.pods(nodes.held if nodes else {}) for scope in scopes)
    return tuple(pods[url] for url in sorted(pods))
