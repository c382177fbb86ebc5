"""The words under `discovery:`: which sources of pods there are, and what each of them is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gateway.config.discovery_places import dns_place, kubernetes_place, registry_place
from gateway.config.fields import file, goes_by_priority, pod_url
from gateway.config.values import Settings
from gateway.discovery.locations import Places, RegistryPlace
from gateway.discovery.source import Found
from routing.facts import BadFacts, read_facts
from tenancy.document import Table, Wrong, flag, text

WORDS_OF_POD = ("url", "pool", "scheduling_policy")
"""Beside the facts that anybody may tell of a pod (`routing/facts.py`)."""


def discovered(table: Table | None, settings: Settings) -> Settings:
    """The settings with what the table says of sources."""
    if table is None:
        return settings
    if (static := table.table("static")) is not None:
        settings = replace(settings, pods=_pods(static))
        static.close()
    if (watched := table.table("file")) is not None:
        settings = replace(settings, pod_file=watched.need("path", file, None))
        watched.close()
    pools = tuple(dict.fromkeys(entry.inference_pool for entry in settings.models if entry.inference_pool))
    places = Places(
        dns=tuple(dns_place(each) for each in _several(table, "dns")),
        registry=_registry(table),
        kubernetes=tuple(kubernetes_place(each, pools) for each in _several(table, "kubernetes")),
    )
    table.close()
    return replace(settings, places=places)


def _registry(table: Table) -> RegistryPlace | None:
    """`redis: true` is the Redis that gateways share."""
    if not table.get("redis", lambda value: isinstance(value, dict) or flag(value), default=False):
        return None
    if table.get("redis", lambda value: value is True, default=False):
        return RegistryPlace()
    said = table.table("redis")
    return registry_place(said) if said is not None else None


def _several(table: Table, key: str) -> tuple[Table, ...]:
    """One mapping, or a list of them."""
    if table.get(key, lambda value: isinstance(value, list), default=False):
        return table.tables(key)
    one = table.table(key)
    return (one,) if one is not None else ()


def pod_place(value: object) -> Found:
    """A pod by its URL, or by a mapping that also says what is known of it."""
    if not isinstance(value, dict):
        return Found(pod_url(value))
    own = {key: _said(key, value[key]) for key in WORDS_OF_POD if value.get(key) is not None}
    try:
        facts = read_facts({str(key): held for key, held in value.items() if key not in WORDS_OF_POD})
    except BadFacts as bad:
        raise Wrong(str(bad)) from None
    policy = own.get("scheduling_policy", "fcfs")
    return Found(pod_url(own.get("url")), own.get("pool"), facts, takes_priority=goes_by_priority(policy))


def each_once(found: Iterable[Found]) -> tuple[Found, ...]:
    """The same without repetitions. Raises `Wrong` where a pod is said to be two things: in which region is it?"""
    once: dict[str, Found] = {}
    for pod in found:
        if once.setdefault(pod.url, pod) != pod:
            raise Wrong(f"{pod.url} stands twice, with different words")
    return tuple(once.values())


def _said(key: str, held: object) -> str:
    try:
        return text(held)
    except Wrong as wrong:
        raise Wrong(f"{key}: {wrong}") from None


def _pods(static: Table) -> tuple[Found, ...]:
    try:
        return each_once(static.each("pods", pod_place) or ())
    except Wrong as wrong:
        static.fault("pods", str(wrong))
        return ()
