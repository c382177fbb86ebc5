"""Which prefill and decode engines may pair for one model, how near they are, and which prefill pods pair with none.

Engines meet in topology domains: all prefill engines of one kinship on one host, in one rack, in one zone, or anywhere.
A decode engine knows its domains, nearest first; so the best prefill engine of each domain, found once per decision,
answers for all decode engines there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from routing.connectors.registry import CONNECTORS, compatibility_key, connector_of
from routing.connectors.shape import Connector
from routing.eligible import EligibleEngines
from routing.facts import PodFacts, Role
from routing.fleet import Fleet
from routing.pairing.links import Link, topology_keys
from routing.pods import Pod, PodState


@dataclass(frozen=True, slots=True)
class TopologyDomain:
    """A topology domain with prefill engines, as seen from a decode engine."""

    number: int
    link: Link


@dataclass(frozen=True, slots=True)
class Partners:
    """All that may pair."""

    prefill: EligibleEngines
    domain_count: int
    """Number of topology domains."""
    prefilling: Mapping[int, tuple[int, ...]]
    """Slot of each prefill engine to the numbers of its domains."""
    decoding: Mapping[int, tuple[TopologyDomain, ...]]
    """Slot of each decode engine to its domains with a prefill engine, nearest first."""
    facts: Mapping[int, PodFacts]
    """By slot, of both kinds."""
    connectors: Mapping[int, Connector]
    """By slot, of prefill engines."""


def find_partners(
    fleet: Fleet, decode: EligibleEngines, prefill: EligibleEngines, known: Sequence[Connector] = CONNECTORS
) -> Partners:
    """Find which engines of two rosters of one model may pair. Linear in engines."""
    numbers: dict[Hashable, int] = {}
    prefilling: dict[int, tuple[int, ...]] = {}
    decoding: dict[int, tuple[TopologyDomain, ...]] = {}
    facts: dict[int, PodFacts] = {}
    connectors: dict[int, Connector] = {}
    for engine in prefill.engines:
        own = facts[engine.slot] = _facts(fleet, engine.pod)
        connector = connector_of(own, known)
        if connector is not None and connector.may_prefill(own):
            keys = _circles(own, connector)
            connectors[engine.slot] = connector
            prefilling[engine.slot] = tuple(numbers.setdefault(key, len(numbers)) for _, key in keys)
    for engine in decode.engines:
        own = facts[engine.slot] = _facts(fleet, engine.pod)
        connector = connector_of(own, known)
        if connector is not None and connector.may_decode(own):
            met = [TopologyDomain(numbers[key], link) for link, key in _circles(own, connector) if key in numbers]
            decoding[engine.slot] = tuple(met)
    return Partners(prefill, len(numbers), prefilling, decoding, facts, connectors)


def _facts(fleet: Fleet, url: str) -> PodFacts:
    pod = fleet.pod(url)
    facts = pod.facts if pod is not None else PodFacts()
    if facts.revision is None or facts.revision not in fleet.revision_aliases:
        return facts
    return replace(facts, revision=fleet.revision_aliases[facts.revision])


def _circles(facts: PodFacts, connector: Connector) -> list[tuple[Link, Hashable]]:
    kin = compatibility_key(facts, connector)
    if kin is None:
        return []
    return [
        (link, (kin, link, position))
        for link, position in zip(Link, topology_keys(facts), strict=True)
        if position is not None
    ]


class UnpairedReason(StrEnum):
    """Why a prefill pod is in no pair. The value says what to do."""

    NO_CONNECTOR = "its kv_connector is not known: set it in its facts (discovery, labels, agent) or in model_list"
    UNFIT_CONNECTOR = (
        "its kv_connector is none of those supported, or lacks a fact that it needs (side_channel, bootstrap, "
        "engine_id, kv_role): see docs/pairs.md"
    )
    NO_DECODE_POD = "no ready pod of its models decodes: start pods with role decode or either"
    NO_PARTNER = (
        "no ready decode pod can read its KV: connector, version, revision, kv_dtype, kv_layout, block_size and, for "
        "most connectors, tp and pp must be equal"
    )


def unpaired(fleet: Fleet, known: Sequence[Connector] = CONNECTORS) -> dict[str, UnpairedReason]:
    """Ready pods that only prefill and that no decode pod can be paired with, by URL."""
    prefilling = [pod for pod in fleet.pods if pod.state is PodState.READY and _only_prefills(pod)]
    paired = set[str]()
    has_decode = set[str]()
    for model in _base_models(prefilling):
        decode = fleet.eligible(model)
        if any(engine.role is not Role.PREFILL for engine in decode.engines):
            prefill = fleet.eligible_prefill(model, at_large=True)
            has_decode |= {engine.pod for engine in prefill.engines}
            paired |= _paired(decode, find_partners(fleet, decode, prefill, known))
    return {pod.url: _why(pod, known, has_decode) for pod in prefilling if pod.url not in paired}


def decoding_pods(fleet: Fleet, known: Sequence[Connector] = CONNECTORS) -> frozenset[str]:
    """Return the URLs of ready pods that can read the KV of some prefill pod."""
    found = set[str]()
    for model in _base_models(fleet.pods):
        decode = fleet.eligible(model)
        partners = find_partners(fleet, decode, fleet.eligible_prefill(model), known)
        found |= {engine.pod for engine in decode.engines if partners.decoding.get(engine.slot)}
    return frozenset(found)


def _base_models(pods: Iterable[Pod]) -> list[str]:
    """Return the models of pods by name: adapters are served by the pods of their base model."""
    return sorted({model for pod in pods for model in pod.models - pod.adapters})


def _only_prefills(pod: Pod) -> bool:
    return bool(pod.engines) and all(engine.role is Role.PREFILL for engine in pod.engines)


def _paired(decode: EligibleEngines, partners: Partners) -> set[str]:
    """Prefill pods that meet a decode engine anywhere."""
    met = {circle.number for engine in decode.engines for circle in partners.decoding.get(engine.slot, ())}
    return {
        engine.pod for engine in partners.prefill.engines if met.intersection(partners.prefilling.get(engine.slot, ()))
    }


def _why(pod: Pod, known: Sequence[Connector], has_decode: set[str]) -> UnpairedReason:
    if pod.facts.kv_connector is None:
        return UnpairedReason.NO_CONNECTOR
    connector = connector_of(pod.facts, known)
    if connector is None or not connector.may_prefill(pod.facts):
        return UnpairedReason.UNFIT_CONNECTOR
    return UnpairedReason.NO_PARTNER if pod.url in has_decode else UnpairedReason.NO_DECODE_POD
