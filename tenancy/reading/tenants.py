"""Tiers and tenants of a policy: what is usual, what a tenant says otherwise, and what contradicts itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tenancy.document import DocumentTable, InvalidValue
from tenancy.objective import DEFAULT_TIER, OverloadAction, Tier
from tenancy.reading.fields import OFF, QUOTA, TENANT, TIER, FieldSpec, name
from tenancy.reading.renamed_keys import RENAMED_TENANT_KEYS, RENAMED_TIER_KEYS, reject_renamed
from tenancy.tenants import UNLIMITED, Quota, Tenant

RENAMED = ("aliases", "downgrades")

Given = dict[str, Any]
"""Fields of a value by name, as far as something was said of them."""


def read_fields_of(table: DocumentTable, words: Mapping[str, FieldSpec]) -> Given:
    """What is said, by field. Does not close the table."""
    found = {word.field: table.get(key, word.kind.parse, None) for key, word in words.items()}
    return {field: value for field, value in found.items() if value is not None}


def tenant_names(table: DocumentTable | None) -> Iterator[str]:
    """The keys of a table that are fit to be names; of others it says so."""
    for key in table.keys if table is not None else ():
        try:
            yield name(key)
        except InvalidValue as wrong:
            table.error(key, f"name {wrong}")  # type: ignore[union-attr]


def read_tiers(table: DocumentTable | None) -> dict[str, Tier]:
    """Return the tiers by name."""
    if table is None:
        return {}
    tiers = {}
    for key in tenant_names(table):
        if key == DEFAULT_TIER.name:
            table.error(key, "is reserved for tenants without a tier; choose another name")
        if (entry := table.table(key)) is not None:
            reject_renamed(entry, RENAMED_TIER_KEYS)
            tiers[key] = Tier(key, **read_fields_of(entry, TIER))
            entry.close()
        else:
            tiers[key] = Tier(key)
    if (reserved := sum(tier.guaranteed_share for tier in tiers.values())) > 1 + 1e-9:
        table.add_error(f"the guaranteed_share values add up to {reserved:g}; the maximum is 1")
    for tier in tiers.values():
        if tier.on_overload is OverloadAction.RELAX and next_below(tier, tiers) is None:
            table.error(f"{tier.name}.on_overload", "`relax` requires a tier of lower priority")
    table.close()
    return tiers


def next_below(tier: Tier, tiers: Mapping[str, Tier]) -> Tier | None:
    """Return the highest of the lower tiers that are not best effort, None if there is none: `relax` uses it."""
    lower = [other for other in tiers.values() if other.priority < tier.priority and not other.is_best_effort]
    return max(lower, key=lambda other: other.priority, default=None)


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """What is said of a tenant, in its own table or in `defaults`."""

    table: DocumentTable
    of_tenant: Given
    of_quota: Given
    per_user: Given | None
    groups: dict[str, Given] | None

    def overrides(self, usual: TenantSpec) -> TenantSpec:
        """What it says stands before what is usual, word by word."""
        return TenantSpec(
            self.table,
            usual.of_tenant | self.of_tenant,
            usual.of_quota | self.of_quota,
            usual.per_user if self.per_user is None else self.per_user,
            usual.groups if self.groups is None else self.groups,
        )


def read_tenant_spec(table: DocumentTable) -> TenantSpec:
    """What stands in a tenant's table, or in `defaults`."""
    reject_renamed(table, RENAMED_TENANT_KEYS)
    per_user, groups = table.table("per_user"), table.table("groups")
    said = TenantSpec(
        table,
        read_fields_of(table, TENANT),
        read_fields_of(table, QUOTA),
        _quota(per_user) if per_user is not None else None,
        None if groups is None else {key: _quota(groups.table(key)) for key in tenant_names(groups)},
    )
    table.close()
    return said


def _quota(table: DocumentTable | None) -> Given:
    if table is None:
        return {}
    found = read_fields_of(table, QUOTA)
    _check_budget(table, found)
    table.close()
    return found


def _check_budget(table: DocumentTable, found: Given) -> None:
    if "budget_duration" in table and found.get("budget", OFF) is OFF:
        table.error("budget_duration", "requires max_budget")


class Tenants:
    """Makes tenants of what is usual and of what is said of each."""

    def __init__(self, usual: TenantSpec, tiers: Mapping[str, Tier]) -> None:
        self._usual = usual
        self._tiers = tiers
        self._reached: set[str] = set()
        _check_tier(usual, tiers)
        _check_renamings(usual, may_use=lambda _: True)

    def unnamed(self, tenant: str) -> Tenant:
        """One of whom nothing is said."""
        return self._made(tenant, self._usual)

    def named(self, tenant: str, said: TenantSpec) -> Tenant:
        """One of whom something is said."""
        _check_tier(said, self._tiers)
        full = said.overrides(self._usual)
        _check_budget(said.table, full.of_quota)
        made = self._made(tenant, full)
        _check_renamings(said, made.may_use)
        own = said.of_tenant.get("on_overload")
        if own is OverloadAction.DOWNGRADE and not made.downgrades:
            said.table.error("on_overload", "`downgrade` requires downgrades")
        if own is OverloadAction.RELAX and made.relaxed is None:
            said.table.error("on_overload", "`relax` requires a tier of lower priority")
        return made

    def _made(self, tenant: str, said: TenantSpec) -> Tenant:
        held = {field: value for field, value in said.of_tenant.items() if value is not OFF}
        tier = self._tiers.get(held.pop("tier", ""), DEFAULT_TIER)
        domain = held.pop("trust_domain", "shared")
        regions = held.pop("regions", None)
        may_use = Tenant(models=held.get("models")).may_use
        for field in RENAMED:
            # What is usual may lead some tenants to models that are not theirs: it then leads nowhere.
            held[field] = {old: new for old, new in held.get(field, {}).items() if may_use(new)}
            self._reached.update(held[field].values())
        return Tenant(
            tenant,
            tier=tier,
            on_overload=held.pop("on_overload", tier.on_overload),
            relaxed=next_below(tier, self._tiers),
            quota=make_quota(said.of_quota),
            per_user=make_quota(said.per_user or {}),
            groups={name: make_quota(given) for name, given in (said.groups or {}).items()},
            regions=None if regions is None else frozenset(regions),
            trust_domain={"shared": None, "tenant": f"tenant:{tenant}"}.get(domain, f"domain:{domain}"),
            **held,
        )

    def close(self) -> None:
        """Say which usual names lead to models that nobody may use."""
        for field in RENAMED:
            for old, new in self._usual.of_tenant.get(field, {}).items():
                if new not in self._reached:
                    self._usual.table.error(f"{field}.{old}", f"`{new}` is in no tenant's models")


def make_quota(given: Given) -> Quota:
    """The quota of what was said; `off` is as if nothing were."""
    return Quota(**{field: value for field, value in given.items() if value is not OFF}) if given else UNLIMITED


def _check_tier(said: TenantSpec, tiers: Mapping[str, Tier]) -> None:
    named = said.of_tenant.get("tier")
    if named is not None and named not in tiers:
        said.table.error("tier", f"unknown tier `{named}`")


def _check_renamings(said: TenantSpec, may_use: Callable[[str], bool]) -> None:
    for field in RENAMED:
        renamed = said.of_tenant.get(field, {})
        for old, new in renamed.items():
            if not may_use(new):
                said.table.error(f"{field}.{old}", f"`{new}` is not in the tenant's models")
            elif _is_circle(old, renamed):
                said.table.error(f"{field}.{old}", "forms a cycle")
            elif new in renamed and field == "aliases":
                said.table.error(f"{field}.{old}", f"`{new}` is itself an alias; name the model")


def _is_circle(first: str, renamed: Mapping[str, str]) -> bool:
    seen, model = set[str](), first
    while model in renamed and model not in seen:
        seen.add(model)
        model = renamed[model]
    return model in seen
