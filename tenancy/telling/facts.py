"""What a tenant gets, word by word in the words of the policy, with what is usual already in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf

from tenancy.quota import Quota
from tenancy.reading.words import QUOTA, TENANT, TIER
from tenancy.tenants import Tenant


@dataclass(frozen=True, slots=True)
class Fact:
    """One word and what it comes to."""

    word: str
    """A path below the tenant: `rpm`, `per_user.rpm`; `tier.priority` of its tier."""
    value: str


def facts(tenant: Tenant) -> Iterator[Fact]:
    """All that a tenant gets; limits only where there are any."""
    yield Fact("tier", tenant.tier.name)
    for word, of_tier in TIER.items():
        value = getattr(tenant.tier, of_tier.field)
        in_ms = word.endswith("_ms") and isinstance(value, float)
        yield Fact(f"tier.{word}", shown(value * 1000 if in_ms else value))
    for word, of_tenant in TENANT.items():
        if word == "cache_isolation":
            domain = tenant.trust_domain or "shared"
            yield Fact(word, "tenant" if domain.startswith("tenant:") else domain.removeprefix("domain:"))
        elif word != "tier":
            yield Fact(word, shown(getattr(tenant, of_tenant.field), _UNSAID.get(word, "none")))
    yield from _limits("", tenant.quota)
    yield from _limits("per_user.", tenant.per_user)
    for name, quota in tenant.groups.items():
        yield from _limits(f"groups.{name}.", quota)


_UNSAID = {"models": "all", "allowed_regions": "anywhere", "max_tokens": "no limit"}


def _limits(prefix: str, quota: Quota) -> Iterator[Fact]:
    for word, of_quota in QUOTA.items():
        value = getattr(quota, of_quota.field)
        is_said = value is not None and (word != "budget_duration" or quota.budget is not None) and value is not False
        if is_said:
            yield Fact(f"{prefix}{word}", f"{value:g}s" if word == "budget_duration" else shown(value))


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
