"""The section `routing`: which scorers choose a pod; value, reader and JSON Schema."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.config.fields import OFF_SCHEMA, schema_of_fields
from routing.candidates import Scorer
from scorers.registry import SCORERS, routings
from tenancy.document import DocumentTable, InvalidValue, integer, one_of, positive, read_fields
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import COUNT


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    """The scorers whose seconds are added up, under the name of their composition."""

    name: str = "warm"
    scorers: tuple[Scorer, ...] = field(default_factory=lambda: routings()["warm"])
    max_blocks_per_engine: int = 1 << 16
    """Maximum blocks per engine in the approximate index: 64 MB or more of distinct prompt text."""


def read_routing(root: DocumentTable) -> RoutingConfig:
    """Read `routing: NAME`, or `routing: {name: NAME, scorers: {SCORER: {PARAMETER: VALUE}}}`.

    `scorers` changes those of the named routing, or adds to them; `SCORER: off` takes one out.
    """
    known = routings()
    name = root.get("routing", lambda value: "" if isinstance(value, dict) else one_of(known)(value), "warm")
    if name:
        return RoutingConfig(name, known[name])
    section = root.table("routing")
    if section is None:  # pragma: no cover - only a mapping comes here
        return RoutingConfig()
    name = section.get("name", one_of(known), "warm")
    scorers = known[name]
    if (chosen := section.table("scorers")) is not None:
        scorers = _scorers(chosen, scorers)
        if not scorers:
            section.error("scorers", "must leave a scorer")
    max_blocks = section.get("max_blocks_per_engine", positive(integer), RoutingConfig().max_blocks_per_engine)
    section.close()
    return RoutingConfig(name, scorers, max_blocks)


def _scorers(section: DocumentTable, defaults: tuple[Scorer, ...]) -> tuple[Scorer, ...]:
    """Read the scorers; the dataclass fields of each are its parameters."""
    given = {scorer.name: scorer for scorer in defaults}
    found: list[Scorer] = []
    for scorer in SCORERS:
        base = given.get(scorer.name)
        if scorer.name in section.keys:
            if section.get(scorer.name, _is_off, default=False):
                continue
            base = base or scorer()
            parameters = section.table(scorer.name)
            base = read_fields(parameters, base) if parameters else base
        if base is not None:
            found.append(base)
    known = [scorer.name for scorer in SCORERS]
    for key in section.keys:
        if key not in known:
            try:
                one_of(known)(key)
            except InvalidValue as wrong:
                section.error(key, str(wrong))
    return tuple(found)


def _is_off(value: object) -> bool:
    """Return whether the value is `off`, which YAML 1.1 reads as false."""
    return value is False or value == "off"


def routing_schema() -> Schema:
    scorers = {scorer.name: {"anyOf": [schema_of_fields(scorer(), above_zero=False), OFF_SCHEMA]} for scorer in SCORERS}
    names: Schema = {"enum": list(routings())}
    changed = table(
        {
            "name": described(names, "Routing that is changed (default warm)."),
            "scorers": described(table(scorers), "Parameters of scorers, or `off`; a scorer that is named is added."),
            "max_blocks_per_engine": described(
                COUNT.schema, "Maximum blocks per engine in the approximate prefix index (default 65536)."
            ),
        }
    )
    return {"anyOf": [names, changed]}
