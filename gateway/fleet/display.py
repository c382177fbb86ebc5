"""A pod as the router is shown it: as it now stands, with what `model_list` says of the models that it serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gateway.config.discovery import Found
from gateway.config.models import ModelEntry
from gateway.fleet.watched import WatchedPod
from routing.facts import PodFacts
from routing.pods import Pod


def as_shown(known: Pod, pod: WatchedPod, models: Mapping[str, ModelEntry]) -> Pod:
    """What the router knows of a pod, brought up to date."""
    cards = tuple(card for card in pod.cards or () if _may_serve(pod.found, models.get(card.name)))
    entries = [models[card.name] for card in cards if card.name in models]
    return replace(
        known,
        standing=pod.standing(),
        models=frozenset(card.name for card in cards),
        adapters=frozenset(card.name for card in cards if card.parent is not None),
        cards=cards,
        has_told=pod.cards is not None,
        pool=pod.found.pool,
        region=pod.found.region,
        facts=_facts(pod.found.facts, entries),
        takes_priority=pod.found.takes_priority or any(entry.takes_priority for entry in entries),
    )


def _may_serve(found: Found, entry: ModelEntry | None) -> bool:
    if entry is None:
        return True
    is_named = entry.pods is None or found.url in entry.pods
    return is_named and entry.inference_pool in (None, found.pool)


def _facts(facts: PodFacts, entries: Sequence[ModelEntry]) -> PodFacts:
    """What was said of the pod, and where that is silent, of the models that it serves."""
    if facts.kv_connector is not None:
        return facts
    told = next((entry.kv_connector for entry in entries if entry.kv_connector), None)
    return facts if told is None else replace(facts, kv_connector=told)
