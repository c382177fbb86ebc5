"""Reads scenario files: YAML in the words of the policy file where there are such words. Every fault at once.

`like: NAME` takes over whatever a file does not say itself, tenant by tenant, and the measure of load with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path

from bench.slo.lengths import Lengths, LogNormal, Quantiles
from bench.slo.scenario import Bursts, Customer, Loss, Scenario
from tenancy.document import (
    DocumentTable,
    InvalidDocument,
    InvalidValue,
    integer,
    not_negative,
    number,
    positive,
    read_document,
    read_fields,
    text,
)
from tenancy.objective import Tier
from tenancy.reading.fields import TIER

FOLDER = Path(__file__).parent / "scenarios"

OF_BEST, REJECTED = "of_best", "refused"
"""What may be wanted beside attainment by tier."""

DEFAULT_LENGTHS = LogNormal(800, 0.8)

NOTHING = Scenario("", "", "", 1.0, {}, (), ("", 1))

Source = Callable[[str], str]
"""Gives the text of a scenario by its name."""


def known_scenarios(folder: Path = FOLDER) -> list[str]:
    """The names of all that there are."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def load_scenario(name: str, folder: Path = FOLDER) -> Scenario:
    """The scenario of a file. Raises `InvalidDocument` with every fault, OSError if it is missing."""
    return read_scenario(name, lambda one: (folder / f"{one}.yaml").read_text(encoding="utf-8"))


def read_scenario(name: str, source: Source) -> Scenario:
    """The scenario of a text. Raises `InvalidDocument` with every fault."""
    root = read_document(source(name), {})
    like = root.get("like", text, "")
    parent = read_scenario(like, source) if like else replace(NOTHING, base=name)
    found = _scenario(root, replace(parent, name=name))
    root.close()
    if root.errors:
        raise InvalidDocument(root.errors)
    return found


def _scenario(root: DocumentTable, parent: Scenario) -> Scenario:
    lengths = _lengths(root, "prompt"), _lengths(root, "answer")
    tiers = dict(parent.tiers)
    named = root.table("tiers")
    for name in named.keys if named else ():
        tiers[name] = _tier(named.table(name) if named else None, tiers.get(name, Tier(name)))
    tenants = {tenant.name: _with_lengths(tenant, lengths) for tenant in parent.tenants}
    named = root.table("tenants")
    for name in named.keys if named else ():
        customer = _with_lengths(Customer(name, "", 0.0, 1.0, DEFAULT_LENGTHS, DEFAULT_LENGTHS), lengths)
        tenants[name] = _tenant(named.table(name) if named else None, tenants.get(name, customer))
    for tenant in tenants.values():
        if tenant.tier not in tiers:
            root.error(f"tenants.{tenant.name}.tier", f"`{tenant.tier}` is no tier of this scenario")
    engine = root.table("engine")
    return replace(
        parent,
        about=root.get("about", text, parent.about),
        load=root.get("load", positive(number), parent.load),
        tiers=tiers,
        tenants=tuple(tenants.values()),
        until=_until(root.table("until"), parent.until, tiers),
        engines=root.get("engines", positive(integer), parent.engines),
        profile=read_fields(engine, parent.profile) if engine else parent.profile,
        loss=_loss(root.table("loss")) or parent.loss,
        trace=root.get("trace", text, parent.trace),
        wanted=_wanted(root.table("wanted"), tiers),
    )


def _tier(table: DocumentTable | None, parent: Tier) -> Tier:
    if table is None:
        return parent
    found = {spec.field: table.get(key, spec.kind.parse, getattr(parent, spec.field)) for key, spec in TIER.items()}
    table.close()
    return replace(parent, **found)


def _tenant(table: DocumentTable | None, parent: Customer) -> Customer:
    if table is None:
        return parent
    found = replace(
        parent,
        tier=table.get("tier", text, parent.tier),
        share=table.get("share", not_negative, parent.share),
        weight=table.get("weight", positive(number), parent.weight),
        prompt=_lengths(table, "prompt") or parent.prompt,
        answer=_lengths(table, "answer") or parent.answer,
        bursts=_bursts(table.table("bursts")) or parent.bursts,
    )
    table.close()
    return found


def _with_lengths(tenant: Customer, lengths: tuple[Lengths | None, Lengths | None]) -> Customer:
    prompt, answer = lengths
    return replace(tenant, prompt=prompt or tenant.prompt, answer=answer or tenant.answer)


def _lengths(within: DocumentTable, key: str) -> Lengths | None:
    table = within.table(key)
    if table is None:
        return None
    points = table.each("quantiles", _point)
    found: Lengths
    if points is not None:
        if len(points) < 2 or points[0][0] != 0.0 or points[-1][0] != 1.0 or list(points) != sorted(set(points)):
            table.error("quantiles", "must be points that rise from share 0 to share 1")
        found = Quantiles(points)
    else:
        mean = table.get_required("mean", positive(number), 1.0)
        found = LogNormal(mean, table.get("sigma", not_negative, 0.0), table.get("most", positive(number), inf))
    table.close()
    return found


def _point(value: object) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidValue("must be [share, tokens]")
    share, tokens = not_negative(value[0]), positive(number)(value[1])
    return share, tokens


def _bursts(table: DocumentTable | None) -> Bursts | None:
    return None if table is None else read_fields(table, Bursts(60.0, 10.0, 3.0), above_zero=True)


def _loss(table: DocumentTable | None) -> Loss | None:
    return None if table is None else read_fields(table, Loss(0, 0.4, 0.7))


def _wanted(table: DocumentTable | None, tiers: Mapping[str, Tier]) -> dict[str, float]:
    """Never taken over: another load is another thing to expect."""
    if table is None:
        return {}
    found = {key: table.get(key, not_negative, 0.0) for key in (*tiers, OF_BEST, REJECTED) if key in table}
    table.close()
    return found


def _until(table: DocumentTable | None, parent: tuple[str, int], tiers: Mapping[str, Tier]) -> tuple[str, int]:
    if table is None:
        return parent
    found = table.get_required("tier", text, ""), table.get_required("requests", positive(integer), 1)
    if found[0] not in tiers:
        table.error("tier", f"`{found[0]}` is no tier of this scenario")
    table.close()
    return found
