"""What gateways tell of themselves on their admin and metrics ports, as numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.cast import Gateway
from tests.chaos.programs import read_json, read_text

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Reading:
    """One page of metrics."""

    samples: dict[tuple[str, Labels], float]

    def sum_of(self, name: str) -> float:
        """Over all its labels; 0 where nothing of it has happened."""
        return sum(value for (sample, _), value in self.samples.items() if sample == name)

    def by(self, name: str, label: str) -> dict[str, float]:
        """Its sums by one of its labels."""
        found: dict[str, float] = {}
        for (sample, labels), value in self.samples.items():
            if sample == name:
                key = dict(labels).get(label, "")
                found[key] = found.get(key, 0.0) + value
        return found

    @property
    def negative(self) -> Iterator[str]:
        """Whatever is counted and stands below zero."""
        for (name, labels), value in self.samples.items():
            if value < 0:
                yield f"{name}{dict(labels) or ''} is {value:g}"


async def read_metrics(session: aiohttp.ClientSession, url: str) -> Reading | None:
    """None where nobody answers."""
    page = await read_text(session, url)
    if page is None:
        return None
    families = text_string_to_metric_families(page)
    return Reading({(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples})


async def read_charged(session: aiohttp.ClientSession, gateway: Gateway) -> list[str]:
    """Engines and accounts on which a gateway still has something, in words."""
    fleet, limits = (
        await read_json(session, f"{gateway.admin}/fleet"),
        await read_json(session, f"{gateway.admin}/limits"),
    )
    if not isinstance(fleet, dict) or not isinstance(limits, dict):
        return ["does not answer"]
    engines = [engine for pod in fleet["pods"] for engine in pod["engines"]]
    ours = [f"{engine['name']} has {engine['own_load']}" for engine in engines if any(engine["own_load"].values())]
    theirs = [
        f"{engine['name']} has of others {engine['peer_load']}"
        for engine in engines
        if any(engine["peer_load"].values())
    ]
    accounts = [
        f"{one['account']} has {one['requests_in_flight']} open"
        for one in limits["accounts"]
        if one["requests_in_flight"]
    ]
    return [*ours, *theirs, *accounts]
