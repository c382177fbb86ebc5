"""Claims and words of a trusted proxy, made into callers of a policy."""

from __future__ import annotations

from dataclasses import replace

from gateway.identity.tokens import Claims, claimed, no
from routing.rejection import Reason, Refused
from tenancy.objective import Tier
from tenancy.policy import Policy, TokenRules
from tenancy.reading.tenants import next_below
from tenancy.tenants import Caller, Tenant

LONGEST_USER = 256
"""Characters; more is cut off: a user is a name in an account, not a message."""


def claimant(claims: Claims, policy: Policy, rules: TokenRules) -> Caller:
    """Whoever a verified token names. Raises `Refused` where it is no tenant of the policy."""
    named = claimed(claims, rules.tenant_claim) if rules.tenant_claim else ()
    known = dict.fromkeys(name for name in named if name in policy.tenants)
    if len(known) > 1:
        raise no("names several tenants")
    tenant = policy.tenants.get(next(iter(known), rules.default_tenant or ""))
    if tenant is None:
        raise no("names no tenant that is known here")
    groups = claimed(claims, rules.group_claim) if rules.group_claim else ()
    group = next((name for name in groups if name in tenant.groups), None)
    users = claimed(claims, rules.user_claim)
    return tenant.caller(group=group, user=users[0][:LONGEST_USER] if users else None)


class Callers:
    """The tenants of one policy as trusted proxies name them, each tenant in each tier made once."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._tiered: dict[tuple[str | None, str], Tenant] = {}

    def named(self, tenant: str) -> Caller:
        """Whoever a proxy vouches for. Raises `Refused` where there is no such tenant."""
        found = self._policy.tenants.get(tenant)
        if found is None:
            raise Refused(Reason.INVALID_KEY, "The tenant that the proxy names is not known here.")
        return found.caller()

    def served_as(self, caller: Caller, *, group: str, user: str, objective: str, priority: str) -> Caller:
        """The same with what else the proxy says; a word that means nothing here changes nothing."""
        tier = self._policy.tiers.get(objective) or self._at_most(priority)
        if tier is None and not group and not user:
            return caller
        tenant = caller.tenant if tier is None else self._in_tier(caller.tenant, tier)
        return tenant.caller(
            key_id=caller.key_id,
            group=group if group in tenant.groups else caller.group,
            user=user[:LONGEST_USER] or caller.user,
        )

    def _at_most(self, priority: str) -> Tier | None:
        try:
            highest = int(priority)
        except ValueError:
            return None
        tiers = [tier for tier in self._policy.tiers.values() if tier.priority <= highest]
        return max(tiers, key=lambda tier: tier.priority, default=None)

    def _in_tier(self, tenant: Tenant, tier: Tier) -> Tenant:
        key = (tenant.name, tier.name)
        if key not in self._tiered:
            relaxed = next_below(tier, self._policy.tiers)
            self._tiered[key] = replace(tenant, tier=tier, relaxed=relaxed, on_overload=tier.on_overload)
        return self._tiered[key]
