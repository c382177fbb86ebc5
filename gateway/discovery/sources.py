"""Builds the sources that the settings name; their order is their precedence where they disagree about a pod.

The most reliable comes first: what the operator wrote (static list, file), then the agents' registry, Kubernetes'
labels, and DNS, which knows addresses only. Libraries of extras are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from gateway.config.settings import Settings
from gateway.discovery.kubernetes import KubernetesSource
from gateway.discovery.kubernetes_api import ApiError
from gateway.discovery.kubernetes_objectives import InferenceRules
from gateway.discovery.source import PodSource
from gateway.runtime.redis_location import parse_redis_url
from routing.pod_record import AgentRecord
from tenancy.document import ConfigError, InvalidDocument

LogFunction = Callable[..., None]


@dataclass(frozen=True, slots=True)
class SourceContext:
    """Clock, randomness and callbacks that sources are built with."""

    log: LogFunction
    clock: Callable[[], float]
    random: Callable[[], float]
    on_record: Callable[[AgentRecord], object] = lambda _: None
    """Called with every record that an agent publishes, for the load figures in it."""
    logs_outages: bool = True
    """Whether this process logs outages that affect all workers of the host."""
    rules: InferenceRules | None = None
    """Receives objectives and rewrites; None if no source follows them."""


def remote_sources(settings: Settings, means: SourceContext) -> Iterator[PodSource]:
    """Yield the sources that query a remote system, by precedence. Raises `InvalidDocument` if a library is missing."""
    yield from _registry(settings, means)
    yield from _kubernetes(settings, means)
    yield from _dns(settings, means)


def _registry(settings: Settings, means: SourceContext) -> Iterator[PodSource]:
    place = settings.sources.registry
    url = (place and place.url) or (settings.redis and settings.redis.value)
    if place is None or not url:
        return
    is_shared = settings.redis is not None and url == settings.redis.value
    from gateway.discovery.registry import RegistrySource  # noqa: PLC0415 - redis-py takes ten megabytes

    yield RegistrySource(
        parse_redis_url(url),
        stale_ttl_s=place.stale_ttl_s,
        log_event=means.log,
        clock=means.clock,
        draw=means.random,
        on_record=means.on_record,
        warns=means.logs_outages and not is_shared,
    )


def missing_libraries(settings: Settings) -> list[ConfigError]:
    """Return a fault for each extra that the settings need and that is not installed."""
    if settings.sources.dns and find_spec("dns") is None:
        return [ConfigError("discovery.dns", "needs a library: pip install 'hearth-gateway[dns]'")]
    return []


def _dns(settings: Settings, means: SourceContext) -> Iterator[PodSource]:
    if not settings.sources.dns:
        return
    if missing := missing_libraries(settings):
        raise InvalidDocument(missing)
    from gateway.discovery.dns import DnsSource  # noqa: PLC0415 - an extra

    for place in settings.sources.dns:
        yield DnsSource(place, log_event=means.log, draw=means.random)


def _kubernetes(settings: Settings, means: SourceContext) -> Iterator[PodSource]:
    for place in settings.sources.kubernetes:
        try:
            yield KubernetesSource(place, log_event=means.log, clock=means.clock, draw=means.random, rules=means.rules)
        except ApiError as refused:
            raise InvalidDocument([ConfigError("discovery.kubernetes", str(refused))]) from None
