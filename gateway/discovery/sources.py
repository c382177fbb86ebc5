"""Builds the sources that the settings name; their order is their precedence where they disagree about a pod.

The most reliable comes first: what the operator wrote (static list, file), then the agents' registry, Kubernetes'
labels, and DNS, which knows addresses only. Libraries of extras are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from gateway.config.settings import Settings
from gateway.discovery.kubernetes import Kubernetes
from gateway.discovery.kubernetes_api import Refused
from gateway.discovery.source import Source
from gateway.runtime.redis_location import parse_redis_url
from routing.pod_record import Record
from tenancy.document import Fault, Invalid

Say = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Means:
    """Clock, randomness and callbacks that sources are built with."""

    say: Say
    clock: Callable[[], float]
    draw: Callable[[], float]
    heard: Callable[[Record], object] = lambda _: None
    """Called with every record that an agent publishes, for the load figures in it."""
    is_first: bool = True
    """Whether this process logs outages that affect all workers of the host."""


def asked_sources(settings: Settings, means: Means) -> Iterator[Source]:
    """Yield the sources that query a remote system, by precedence. Raises `Invalid` if a library is missing."""
    yield from _registry(settings, means)
    yield from _kubernetes(settings, means)
    yield from _dns(settings, means)


def _registry(settings: Settings, means: Means) -> Iterator[Source]:
    place = settings.places.registry
    url = (place and place.url) or (settings.redis and settings.redis.value)
    if place is None or not url:
        return
    is_shared = settings.redis is not None and url == settings.redis.value
    from gateway.discovery.registry import Registry  # noqa: PLC0415 - redis-py takes ten megabytes

    yield Registry(
        parse_redis_url(url),
        keep_s=place.keep_s,
        say=means.say,
        clock=means.clock,
        draw=means.draw,
        heard=means.heard,
        warns=means.is_first and not is_shared,
    )


def missing_libraries(settings: Settings) -> list[Fault]:
    """Return a fault for each extra that the settings need and that is not installed."""
    if settings.places.dns and find_spec("dns") is None:
        return [Fault("discovery.dns", "needs a library: pip install 'hearth-gateway[dns]'")]
    return []


def _dns(settings: Settings, means: Means) -> Iterator[Source]:
    if not settings.places.dns:
        return
    if missing := missing_libraries(settings):
        raise Invalid(missing)
    from gateway.discovery.dns import DnsNames  # noqa: PLC0415 - an extra

    for place in settings.places.dns:
        yield DnsNames(place, say=means.say, draw=means.draw)


def _kubernetes(settings: Settings, means: Means) -> Iterator[Source]:
    for place in settings.places.kubernetes:
        try:
            yield Kubernetes(place, say=means.say, clock=means.clock, draw=means.draw)
        except Refused as refused:
            raise Invalid([Fault("discovery.kubernetes", str(refused))]) from None
