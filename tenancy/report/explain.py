"""What a tenant gets by a policy: each field, its value, the line it comes from, and differences between policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf

import yaml

from tenancy.document import compose_yaml, join
from tenancy.policy import Policy
from tenancy.reading.fields import QUOTA, TENANT, TIER
from tenancy.tenants import Quota, Tenant


@dataclass(frozen=True, slots=True)
class PolicyField:
    """One word and what it comes to."""

    field: str
    """A path below the tenant: `rpm`, `per_user.rpm`; `tier.priority` of its tier."""
    value: str


def fields_of(tenant: Tenant) -> Iterator[PolicyField]:
    """All that a tenant gets; limits only where there are any."""
    yield PolicyField("tier", tenant.tier.name)
    for key, of_tier in TIER.items():
        value = getattr(tenant.tier, of_tier.field)
        yield PolicyField(f"tier.{key}", shown(value))
    for key, of_tenant in TENANT.items():
        if key == "cache_isolation":
            domain = tenant.trust_domain or "shared"
            yield PolicyField(key, "tenant" if domain.startswith("tenant:") else domain.removeprefix("domain:"))
        elif key != "tier":
            yield PolicyField(key, shown(getattr(tenant, of_tenant.field), _UNSAID.get(key, "none")))
    yield from _limits("", tenant.quota)
    yield from _limits("per_user.", tenant.per_user)
    for name, quota in tenant.groups.items():
        yield from _limits(f"groups.{name}.", quota)


_UNSAID = {"models": "all", "allowed_regions": "anywhere", "max_tokens": "no limit"}


def _limits(prefix: str, quota: Quota) -> Iterator[PolicyField]:
    for key, of_quota in QUOTA.items():
        value = getattr(quota, of_quota.field)
        is_set = value is not None and (key != "budget_duration" or quota.budget is not None) and value is not False
        if is_set:
            yield PolicyField(f"{prefix}{key}", f"{value:g}s" if key == "budget_duration" else shown(value))


def shown(value: object, unsaid: str = "none") -> str:
    """A value as people read it."""
    match value:
        case None:
            return unsaid
        case bool():
            return "yes" if value else "no"
        case float():
            return "none" if value == inf else f"{value:.6g}"
        case Mapping():
            return ", ".join(f"{old} -> {new}" for old, new in sorted(value.items())) or unsaid
        case str():
            return str(value)
        case Iterable():
            return ", ".join(sorted(map(str, value))) or "none"
        case _:
            return str(value)


@dataclass(frozen=True, slots=True)
class ExplainedField:
    """One fact and its source: a path and a line; empty if the file does not set it."""

    field: str
    value: str
    path: str = ""
    line: int = 0

    @property
    def source(self) -> str:
        return f"{self.path}, line {self.line}" if self.line else "default"


def explain(source: str, policy: Policy, name: str) -> Iterator[ExplainedField]:
    """What one tenant of the policy in this text gets."""
    lines, tenant = lines_of(source), policy.tenants[name]
    for fact in fields_of(tenant):
        path = next((path for path in _paths(fact.field, name, tenant.tier.name, lines) if path in lines), "")
        yield ExplainedField(fact.field, fact.value, path, lines.get(path, 0))


def _paths(key: str, tenant: str, tier: str, lines: Mapping[str, int]) -> Iterator[str]:
    """Return the paths where a field may be set; the first that is set counts."""
    first, dot, rest = key.partition(".")
    if first == "tier" and dot:
        yield f"tiers.{tier}.{rest}"
        return
    yield f"tenants.{tenant}.{key}"
    # A tenant's own table of these replaces the defaults completely.
    if first not in ("per_user", "groups") or f"tenants.{tenant}.{first}" not in lines:
        yield f"defaults.{key}"
    if key == "on_overload":
        yield f"tiers.{tier}.on_overload"


def lines_of(source: str) -> dict[str, int]:
    """Path to line of every key in a text that is known to be YAML."""
    lines: dict[str, int] = {}
    root = compose_yaml(source)
    if root is not None:
        _note(root, "", lines)
    return lines


def _note(node: yaml.Node, path: str, lines: dict[str, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        # What is merged in counts only where nothing else is given.
        for key, value in sorted(node.value, key=lambda pair: pair[0].value == "<<"):
            if key.value == "<<":
                for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    _note(merged, path, lines)
            else:
                at = join(path, key.value)
                lines.setdefault(at, key.start_mark.line + 1)
                _note(value, at, lines)


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """One word that comes to something else. `owner` is a tenant, or empty for what is everybody's."""

    tenant: str
    field: str
    before: str
    after: str


def differences(old: Policy, new: Policy) -> Iterator[PolicyChange]:
    """All of them, tenant by tenant."""
    yield from _changed("", _everybodys(old), _everybodys(new))
    for name in dict.fromkeys((*old.tenants, *new.tenants)):
        before, after = old.tenants.get(name), new.tenants.get(name)
        if before is None:
            yield PolicyChange(name, "tenant", "absent", "added")
        elif after is None:
            yield PolicyChange(name, "tenant", "present", "removed")
        else:
            yield from _changed(name, _facts(before), _facts(after))
        yield from _changed(name, _keys(old, name), _keys(new, name))


def _changed(owner: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[PolicyChange]:
    for key in dict.fromkeys((*before, *after)):
        was, comes = before.get(key, "none"), after.get(key, "none")
        if was != comes:
            yield PolicyChange(owner, key, was, comes)


def _facts(tenant: Tenant) -> dict[str, str]:
    return {fact.field: fact.value for fact in fields_of(tenant)}


def _keys(policy: Policy, tenant: str) -> dict[str, str]:
    found = {}
    for key in policy.keys.values():
        if key.caller.tenant.name == tenant:
            ends = datetime.fromtimestamp(key.expires_s, UTC) if key.expires_s < inf else None
            until = f"expires {ends:%Y-%m-%d %H:%MZ}" if ends is not None else "no expiry"
            pairs = [("group", key.caller.group), ("user", key.caller.user)]
            found[f"key {key.caller.key_id}"] = ", ".join([until, *(f"{key} {held}" for key, held in pairs if held)])
    return found


def _everybodys(policy: Policy) -> dict[str, str]:
    """Describe whose tokens and headers are trusted, who may come without any, and what of the fleet is reserved."""
    default = policy.default.tenant.name if policy.default is not None else None
    found = {"default_tenant": shown(default), "headers": shown(policy.headers.names)}
    found |= {f"tiers.{name}.guaranteed_share": shown(tier.guaranteed_share) for name, tier in policy.tiers.items()}
    if policy.jwt is not None:
        rules = policy.jwt
        found |= {
            "jwt.issuer": rules.issuer,
            "jwt.audiences": shown(rules.audiences),
            "jwt.claims": shown([held for held in (rules.tenant_claim, rules.user_claim, rules.group_claim) if held]),
            "jwt.algorithms": shown(rules.algorithms),
            "jwt.default_tenant": shown(rules.default_tenant),
        }
    return found
