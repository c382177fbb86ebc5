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
"""The fields given for a value, by name."""


def read_fields_of(table: DocumentTable, specs: Mapping[str, FieldSpec]) -> Given:
    """Read the given fields. Does not close the table."""
    found = {spec.field: table.get(key, spec.kind.parse, None) for key, spec in specs.items()}
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
    """Return the highest of the lower tiers that are not best effort, or None: `relax` uses it."""
    lower = [other for other in tiers.values() if other.priority < tier.priority and not other.is_best_effort]
    return max(lower, key=lambda other: other.priority, default=None)


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """What the policy sets for a tenant, in its own table or in `defaults`."""

    table: DocumentTable
    of_tenant: Given
    of_quota: Given
    per_user: Given | None
    groups: dict[str, Given] | None

    def overrides(self, defaults: TenantSpec) -> TenantSpec:
        """What it says stands before what is usual, word by word."""
        return TenantSpec(
            self.table,
            defaults.of_tenant | self.of_tenant,
            defaults.of_quota | self.of_quota,
            defaults.per_user if self.per_user is None else self.per_user,
            defaults.groups if self.groups is None else self.groups,
        )


def read_tenant_spec(table: DocumentTable) -> TenantSpec:
    """Read a tenant's table, or `defaults`."""
    reject_renamed(table, RENAMED_TENANT_KEYS)
    per_user, groups = table.table("per_user"), table.table("groups")
    spec = TenantSpec(
        table,
        read_fields_of(table, TENANT),
        read_fields_of(table, QUOTA),
        _quota(per_user) if per_user is not None else None,
        None if groups is None else {key: _quota(groups.table(key)) for key in tenant_names(groups)},
    )
    table.close()
    return spec


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
    """Makes tenants of the defaults and of what is set for each."""

    def __init__(self, defaults: TenantSpec, tiers: Mapping[str, Tier]) -> None:
        self._defaults = defaults
        self._tiers = tiers
        self._reached: set[str] = set()
        _check_tier(defaults, tiers)
        _check_renamings(defaults, may_use=lambda _: True)

    def unnamed(self, tenant: str) -> Tenant:
        """Make a tenant of the defaults only."""
        return self._made(tenant, self._defaults)

    def named(self, tenant: str, spec: TenantSpec) -> Tenant:
        """Make a tenant of its own table over the defaults."""
        _check_tier(spec, self._tiers)
        full = spec.overrides(self._defaults)
        _check_budget(spec.table, full.of_quota)
        made = self._made(tenant, full)
        _check_renamings(spec, made.may_use)
        _check_providers(spec.table, full, made)
        own = spec.of_tenant.get("on_overload")
        if own is OverloadAction.DOWNGRADE and not made.downgrades:
            spec.table.error("on_overload", "`downgrade` requires downgrades")
        if own is OverloadAction.RELAX and made.relaxed is None:
            spec.table.error("on_overload", "`relax` requires a tier of lower priority")
        return made

    def _made(self, tenant: str, spec: TenantSpec) -> Tenant:
        held = {field: value for field, value in spec.of_tenant.items() if value is not OFF}
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
            quota=make_quota(spec.of_quota),
            per_user=make_quota(spec.per_user or {}),
            groups={name: make_quota(given) for name, given in (spec.groups or {}).items()},
            regions=None if regions is None else frozenset(regions),
            trust_domain={"shared": None, "tenant": f"tenant:{tenant}"}.get(domain, f"domain:{domain}"),
            **held,
        )

    def close(self) -> None:
        """Report default names that lead to models that no tenant may use."""
        for field in RENAMED:
            for old, new in self._defaults.of_tenant.get(field, {}).items():
                if new not in self._reached:
                    self._defaults.table.error(f"{field}.{old}", f"`{new}` is in no tenant's models")


def _check_providers(table: DocumentTable, full: TenantSpec, made: Tenant) -> None:
    """Report grants without a stated budget, and grants for data that is isolated."""
    if not made.grants:
        return
    if "provider_budget" not in full.of_tenant:
        table.error("providers", "requires providers_max_budget, an amount of money or `off`")
    if made.trust_domain is not None:
        table.error("providers", "conflicts with cache_isolation: isolated data is never sent to a provider")


def make_quota(given: Given) -> Quota:
    """Make a quota of the given fields; `off` counts as not given."""
    return Quota(**{field: value for field, value in given.items() if value is not OFF}) if given else UNLIMITED


def _check_tier(spec: TenantSpec, tiers: Mapping[str, Tier]) -> None:
    named = spec.of_tenant.get("tier")
    if named is not None and named not in tiers:
        spec.table.error("tier", f"unknown tier `{named}`")


def _check_renamings(spec: TenantSpec, may_use: Callable[[str], bool]) -> None:
    for field in RENAMED:
        renamed = spec.of_tenant.get(field, {})
        for old, new in renamed.items():
            if not may_use(new):
                spec.table.error(f"{field}.{old}", f"`{new}` is not in the tenant's models")
            elif _is_circle(old, renamed):
                spec.table.error(f"{field}.{old}", "forms a cycle")
            elif new in renamed and field == "aliases":
                spec.table.error(f"{field}.{old}", f"`{new}` is itself an alias; name the model")


def _is_circle(first: str, renamed: Mapping[str, str]) -> bool:
    seen, model = set[str](), first
    while model in renamed and model not in seen:
        seen.add(model)
        model = renamed[model]
    return model in seen
