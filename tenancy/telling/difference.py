"""What changes for whom between two policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf

from tenancy.policy import Policy
from tenancy.telling.facts import facts, shown
from tenancy.tenants import Tenant


@dataclass(frozen=True, slots=True)
class Change:
    """One word that comes to something else. `whose` is a tenant, or empty for what is everybody's."""

    whose: str
    word: str
    before: str
    after: str


def differences(old: Policy, new: Policy) -> Iterator[Change]:
    """All of them, tenant by tenant."""
    yield from _changed("", _everybodys(old), _everybodys(new))
    for name in dict.fromkeys((*old.tenants, *new.tenants)):
        before, after = old.tenants.get(name), new.tenants.get(name)
        if before is None:
            yield Change(name, "tenant", "none", "new")
        elif after is None:
            yield Change(name, "tenant", "was", "gone")
        else:
            yield from _changed(name, _facts(before), _facts(after))
        yield from _changed(name, _keys(old, name), _keys(new, name))


def _changed(whose: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for word in dict.fromkeys((*before, *after)):
        was, comes = before.get(word, "none"), after.get(word, "none")
        if was != comes:
            yield Change(whose, word, was, comes)


def _facts(tenant: Tenant) -> dict[str, str]:
    return {fact.word: fact.value for fact in facts(tenant)}


def _keys(policy: Policy, tenant: str) -> dict[str, str]:
    found = {}
    for key in policy.keys.values():
        if key.caller.tenant.name == tenant:
            ends = datetime.fromtimestamp(key.until_s, UTC) if key.until_s < inf else None
            until = f"until {ends:%Y-%m-%d %H:%MZ}" if ends is not None else "good"
            words = [("group", key.caller.group), ("user", key.caller.user)]
            found[f"key {key.caller.key_id}"] = ", ".join([until, *(f"{word} {held}" for word, held in words if held)])
    return found


def _everybodys(policy: Policy) -> dict[str, str]:
    """Whose tokens and headers are believed, who may come without any, and what of the fleet is reserved."""
    default = policy.default.tenant.name if policy.default is not None else None
    found = {"default_tenant": shown(default), "headers": shown(policy.headers.names)}
    found |= {f"tiers.{name}.reserve": shown(tier.reserve) for name, tier in policy.tiers.items()}
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
