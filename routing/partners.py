"""Which engines may pair for one model while the fleet stays as it is, and how near they stand to each other.

Engines meet in circles: all prefill engines of one kinship that stand on one host, in one rack, in one zone, or
anywhere. A decode engine knows its circles, nearest first; so the best prefill engine of each circle, found once per
decision, answers for all decode engines that meet there.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from routing.connectors.registry import CONNECTORS, connector_of, kinship
from routing.connectors.shape import Connector
from routing.facts import PodFacts
from routing.fleet import Fleet
from routing.links import Link, places_of
from routing.roster import Roster


@dataclass(frozen=True, slots=True)
class Circle:
    """Where prefill engines and a decode engine meet."""

    number: int
    link: Link


@dataclass(frozen=True, slots=True)
class Partners:
    """All that may pair."""

    prefill: Roster
    circles: int
    """How many circles there are."""
    prefilling: Mapping[int, tuple[int, ...]]
    """Slot of each prefill engine to the numbers of its circles."""
    decoding: Mapping[int, tuple[Circle, ...]]
    """Slot of each decode engine to its circles in which anybody prefills, nearest first."""
    facts: Mapping[int, PodFacts]
    """By slot, of both kinds."""
    connectors: Mapping[int, Connector]
    """By slot, of prefill engines."""


def find_partners(fleet: Fleet, decode: Roster, prefill: Roster, known: Sequence[Connector] = CONNECTORS) -> Partners:
    """Who of two rosters of one model may pair. Linear in engines."""
    numbers: dict[Hashable, int] = {}
    prefilling: dict[int, tuple[int, ...]] = {}
    decoding: dict[int, tuple[Circle, ...]] = {}
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
            met = [Circle(numbers[key], link) for link, key in _circles(own, connector) if key in numbers]
            decoding[engine.slot] = tuple(met)
    return Partners(prefill, len(numbers), prefilling, decoding, facts, connectors)


def _facts(fleet: Fleet, url: str) -> PodFacts:
    pod = fleet.pod(url)
    return pod.facts if pod is not None else PodFacts()


def _circles(facts: PodFacts, connector: Connector) -> list[tuple[Link, Hashable]]:
    kin = kinship(facts, connector)
    if kin is None:
        return []
    return [(link, (kin, link, place)) for link, place in zip(Link, places_of(facts), strict=True) if place is not None]
