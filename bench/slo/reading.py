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

OF_BEST, REFUSED = "of_best", "refused"
"""What may be wanted beside attainment by tier."""

USUAL_LENGTHS = LogNormal(800, 0.8)

NOTHING = Scenario("", "", "", 1.0, {}, (), ("", 1))

Source = Callable[[str], str]
"""Gives the text of a scenario by its name."""


def known_scenarios(folder: Path = FOLDER) -> list[str]:
    """The names of all that there are."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def load_scenario(name: str, folder: Path = FOLDER) -> Scenario:
    """The scenario of a file. Raises `InvalidDocument` with every fault, OSError where there is none."""
    return read_scenario(name, lambda one: (folder / f"{one}.yaml").read_text(encoding="utf-8"))


def read_scenario(name: str, source: Source) -> Scenario:
    """The scenario of a text. Raises `InvalidDocument` with every fault."""
    root = read_document(source(name), {})
    like = root.get("like", text, "")
    usual = read_scenario(like, source) if like else replace(NOTHING, base=name)
    found = _scenario(root, replace(usual, name=name))
    root.close()
    if root.errors:
        raise InvalidDocument(root.errors)
    return found


def _scenario(root: DocumentTable, usual: Scenario) -> Scenario:
    lengths = _lengths(root, "prompt"), _lengths(root, "answer")
    tiers = dict(usual.tiers)
    named = root.table("tiers")
    for name in named.keys if named else ():
        tiers[name] = _tier(named.table(name) if named else None, tiers.get(name, Tier(name)))
    tenants = {tenant.name: _with_lengths(tenant, lengths) for tenant in usual.tenants}
    named = root.table("tenants")
    for name in named.keys if named else ():
        nobody = _with_lengths(Customer(name, "", 0.0, 1.0, USUAL_LENGTHS, USUAL_LENGTHS), lengths)
        tenants[name] = _tenant(named.table(name) if named else None, tenants.get(name, nobody))
    for tenant in tenants.values():
        if tenant.tier not in tiers:
            root.error(f"tenants.{tenant.name}.tier", f"`{tenant.tier}` is no tier of this scenario")
    engine = root.table("engine")
    return replace(
        usual,
        about=root.get("about", text, usual.about),
        load=root.get("load", positive(number), usual.load),
        tiers=tiers,
        tenants=tuple(tenants.values()),
        until=_until(root.table("until"), usual.until, tiers),
        engines=root.get("engines", positive(integer), usual.engines),
        profile=read_fields(engine, usual.profile) if engine else usual.profile,
        loss=_loss(root.table("loss")) or usual.loss,
        trace=root.get("trace", text, usual.trace),
        wanted=_wanted(root.table("wanted"), tiers),
    )


def _tier(table: DocumentTable | None, usual: Tier) -> Tier:
    if table is None:
        return usual
    found = {word.field: table.get(key, word.kind.parse, getattr(usual, word.field)) for key, word in TIER.items()}
    table.close()
    return replace(usual, **found)


def _tenant(table: DocumentTable | None, usual: Customer) -> Customer:
    if table is None:
        return usual
    found = replace(
        usual,
        tier=table.get("tier", text, usual.tier),
        share=table.get("share", not_negative, usual.share),
        weight=table.get("weight", positive(number), usual.weight),
        prompt=_lengths(table, "prompt") or usual.prompt,
        answer=_lengths(table, "answer") or usual.answer,
        bursts=_bursts(table.table("bursts")) or usual.bursts,
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
    found = {key: table.get(key, not_negative, 0.0) for key in (*tiers, OF_BEST, REFUSED) if key in table}
    table.close()
    return found


def _until(table: DocumentTable | None, usual: tuple[str, int], tiers: Mapping[str, Tier]) -> tuple[str, int]:
    if table is None:
        return usual
    found = table.get_required("tier", text, ""), table.get_required("requests", positive(integer), 1)
    if found[0] not in tiers:
        table.error("tier", f"`{found[0]}` is no tier of this scenario")
    table.close()
    return found
