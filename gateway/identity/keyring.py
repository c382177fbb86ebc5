"""Identifies callers: by the digest of a key, a token and its issuer's keys, or the headers of a trusted proxy.

Holds the policy in force. A look-up by digest needs no constant time: an attacker who learns the first digits of a
digest has learned nothing about a key.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256

from gateway.identity.issuer import TokenIssuer
from gateway.identity.tokens import (
    MAX_TOKEN_BYTES,
    Claims,
    UnknownSigningKey,
    claim_values,
    token_rejected,
    verify_token,
)
from routing.rejection import Reason, RequestRejected
from tenancy.objective import Tier
from tenancy.policy import HMAC, Policy, TokenRules
from tenancy.reading.tenants import next_below
from tenancy.tenants import ANONYMOUS_CALLER, Caller, Tenant

MAX_USER_LENGTH = 256
"""Characters of a user name; the rest is cut off."""


def caller_of_claims(claims: Claims, policy: Policy, rules: TokenRules) -> Caller:
    """Return the caller that a verified token names. Raises `RequestRejected` if it names no tenant of the policy."""
    named = claim_values(claims, rules.tenant_claim) if rules.tenant_claim else ()
    known = dict.fromkeys(name for name in named if name in policy.tenants)
    if len(known) > 1:
        raise token_rejected("names several tenants")
    tenant = policy.tenants.get(next(iter(known), rules.default_tenant or ""))
    if tenant is None:
        raise token_rejected("names no tenant that is known here")
    groups = claim_values(claims, rules.group_claim) if rules.group_claim else ()
    group = next((name for name in groups if name in tenant.groups), None)
    users = claim_values(claims, rules.user_claim)
    return tenant.caller(group=group, user=users[0][:MAX_USER_LENGTH] if users else None)


ObjectivePriority = Callable[[str], int | None]
"""Returns the priority of an InferenceObjective by name, None for an unknown one."""


class ProxyCallers:
    """The tenants of one policy as trusted proxies name them; each tenant in each tier is built once."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._tiered: dict[tuple[str | None, str], Tenant] = {}

    def caller_of(self, tenant: str) -> Caller:
        """Return the caller of a tenant that a proxy names. Raises `RequestRejected` if there is no such tenant."""
        found = self._policy.tenants.get(tenant)
        if found is None:
            raise RequestRejected(Reason.INVALID_KEY, "The proxy's tenant header names an unknown tenant.")
        return found.caller()

    def with_overrides(
        self, caller: Caller, *, group: str, user: str, objective: str, priority: str, max_priority: int | None = None
    ) -> Caller:
        """Apply the proxy's group, user and tier to a caller; unknown values are ignored.

        `max_priority`: highest priority of the tier, which lowers and never raises; None: no such bound.
        """
        tier = self._policy.tiers.get(objective) or self._tier_up_to(_priority_of(priority))
        if max_priority is not None and max_priority < (tier or caller.tenant.tier).priority:
            tier = self._tier_up_to(max_priority) or tier
        if tier is None and not group and not user:
            return caller
        tenant = caller.tenant if tier is None else self._in_tier(caller.tenant, tier)
        return tenant.caller(
            key_id=caller.key_id,
            group=group if group in tenant.groups else caller.group,
            user=user[:MAX_USER_LENGTH] or caller.user,
        )

    def _tier_up_to(self, highest: int | None) -> Tier | None:
        if highest is None:
            return None
        tiers = [tier for tier in self._policy.tiers.values() if tier.priority <= highest]
        return max(tiers, key=lambda tier: tier.priority, default=None)

    def _in_tier(self, tenant: Tenant, tier: Tier) -> Tenant:
        key = (tenant.name, tier.name)
        if key not in self._tiered:
            relaxed = next_below(tier, self._policy.tiers)
            self._tiered[key] = replace(tenant, tier=tier, relaxed=relaxed, on_overload=tier.on_overload)
        return self._tiered[key]


def _priority_of(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


MAX_CACHED_TOKENS = 10_000
"""Verified tokens that are cached: about 1 KB each, which saves 50 us for a signature."""


HEADER_ENCODING = "latin-1"
"""Encoding of header values."""


class Keyring:
    """Identifies callers by the current policy. Without a policy every caller is anonymous."""

    def __init__(
        self,
        policy: Policy | None = None,
        issuer: TokenIssuer | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._issuer = issuer
        self._wall_clock = wall_clock
        self._verified: dict[str, tuple[Caller, float]] = {}
        self._objective_priority: ObjectivePriority | None = None
        self.policy = policy

    @property
    def policy(self) -> Policy | None:
        """The policy in force; requests in flight keep the one they started under."""
        return self._policy

    @policy.setter
    def policy(self, policy: Policy | None) -> None:
        self._policy = policy
        self._verified.clear()
        self._callers = ProxyCallers(policy) if policy is not None else None
        if self._issuer is not None:
            self._issuer.use_rules(policy.jwt if policy is not None else None, self._verified.clear)

    def use_objectives(self, priority_of: ObjectivePriority) -> None:
        """Lower the tier of requests by objectives without a tier of their name."""
        self._objective_priority = priority_of

    def identify(self, key: str | None, proxy_headers: Mapping[bytes, bytes] | None = None) -> Caller:
        """Return the caller of a key or token. `proxy_headers`: the headers of a request that a trusted proxy has sent.

        Raises `RequestRejected` where it is nobody's.
        """
        policy, callers = self._policy, self._callers
        if policy is None or callers is None:
            return ANONYMOUS_CALLER
        if proxy_headers is None:
            return self._shown(policy, key)
        names = policy.headers
        tenant, group, user, objective, priority = (
            next((text.decode(HEADER_ENCODING) for name in held if (text := proxy_headers.get(name.encode()))), "")
            for held in (names.tenant, names.group, names.user, names.objective, names.priority)
        )
        caller = callers.caller_of(tenant) if tenant else self._shown(policy, key)
        max_priority = None
        if self._objective_priority is not None and objective and objective not in policy.tiers:
            max_priority = self._objective_priority(objective)
        return callers.with_overrides(
            caller, group=group, user=user, objective=objective, priority=priority, max_priority=max_priority
        )

    def _shown(self, policy: Policy, key: str | None) -> Caller:
        if not key:
            if policy.default is None:
                raise RequestRejected(
                    Reason.INVALID_KEY, "No API key in the request; send it as `Authorization: Bearer KEY`."
                )
            return policy.default
        if len(key) > MAX_TOKEN_BYTES:
            raise RequestRejected(Reason.INVALID_KEY, "The API key is too long.")
        raw = key.encode("utf-8", "surrogateescape")
        digest = sha256(raw).hexdigest()
        found = policy.keys.get(digest)
        if found is None and policy.hmac_secret is not None:
            found = policy.keys.get(HMAC + hmac.digest(policy.hmac_secret.encode(), raw, "sha256").hex())
        if found is None:
            if policy.jwt is not None and key.count(".") == 2:
                return self._borne(policy, key, digest)
            raise RequestRejected(Reason.INVALID_KEY, "Invalid API key.")
        if self._wall_clock() >= found.expires_s:
            raise RequestRejected(Reason.INVALID_KEY, "The API key has expired.")
        return found.caller

    def _borne(self, policy: Policy, token: str, digest: str) -> Caller:
        """Return the caller of a token. A verified one is cached until it expires, or keys or policy change."""
        now_s = self._wall_clock()
        caller, until_s = self._verified.get(digest, (ANONYMOUS_CALLER, 0.0))
        if now_s < until_s:
            return caller
        if policy.jwt is None or self._issuer is None or (keys := self._issuer.keys) is None:
            raise RequestRejected(
                Reason.JWKS_UNAVAILABLE,
                "The token issuer's keys are not available yet; retry in a second.",
                retry_after_s=1.0,
            )
        try:
            claims = verify_token(token, policy.jwt, keys, now_s)
        except UnknownSigningKey:
            if self._issuer.request_refresh():
                words = (
                    "The token's signing key is not known yet; the issuer's keys are being fetched. Retry in a second."
                )
                raise RequestRejected(Reason.JWKS_UNAVAILABLE, words, retry_after_s=1.0) from None
            raise token_rejected("is signed with an unknown key") from None
        caller = caller_of_claims(claims, policy, policy.jwt)
        while len(self._verified) >= MAX_CACHED_TOKENS:
            del self._verified[next(iter(self._verified))]
        self._verified[digest] = (caller, claims["exp"] + policy.jwt.leeway_s)
        return caller
