"""The words under `discovery:`: which sources of pods there are, and what each of them is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gateway.config.values import Settings
from gateway.config.words import file, goes_by_priority, pod_url
from gateway.discovery.source import Found
from routing.facts import BadFacts, read_facts
from tenancy.document import Table, Wrong, text

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
    table.close()
    return settings


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
