"""Tenants, their quotas, and callers on their behalf. Values; independent of keys and usage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tenancy.objective import DEFAULT_TIER, OverloadAction, Tier


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of one account; None for no limit. A limit per minute binds over any sixty seconds."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    """Input and output together."""
    input_tokens_per_min: int | None = None
    output_tokens_per_min: int | None = None
    uncached_tokens_per_min: int | None = None
    """Input that no engine held already."""
    parallel_requests: int | None = None
    budget: float | None = None
    """Money, in the unit of the price table, within `budget_period_s`."""
    budget_period_s: float = 86_400.0
    binds_only_under_load: bool = False
    """Limits per minute bind only while others wait."""

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is ever refused for it."""
        return self == UNLIMITED


UNLIMITED = Quota()


@dataclass(frozen=True, slots=True)
class Account:
    """What a quota binds: a tenant, one of its groups, users or keys. `path` is its name: `search/user/ann`."""

    path: str
    quota: Quota


PROVIDERS = "providers"
"""Last part of the path of a tenant's account for providers."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One customer of the gateway. The anonymous tenant has no name."""

    name: str | None = None
    models: frozenset[str] | None = None
    """Names of the models it may use, None for all."""
    tier: Tier = DEFAULT_TIER
    weight: float = 1.0
    """Its share of the service that its tier's tenants get."""
    on_overload: OverloadAction = OverloadAction.REJECT
    """Its own setting, or else its tier's."""
    relaxed: Tier | None = None
    """The next lower tier, whose objective applies when it relaxes; None for the lowest."""
    quota: Quota = UNLIMITED
    per_user: Quota = UNLIMITED
    """Of each of its users by itself."""
    groups: Mapping[str, Quota] = field(default_factory=dict, hash=False)
    """Of each of its groups, all members together."""
    keys: Mapping[str, Quota] = field(default_factory=dict, hash=False, repr=False)
    """Of its keys that have limits of their own, by key id."""
    output_cap: int | None = None
    """Most tokens of one answer."""
    aliases: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What the tenant calls a model, to what it is called here."""
    downgrades: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The smaller model that answers for a model under overload."""
    regions: frozenset[str] | None = None
    """Regions where its requests may be computed, None for anywhere. A pod of unknown region matches none."""
    trust_domain: str | None = None
    """Whose KV blocks it may share, as the engines' `cache_salt`; None for everybody's."""
    prewarms: bool | None = None
    """Whether its prompts may be kept for the warm-up of new pods: True also to pools of higher rank, and where it
    shares no KV; None: neither.
    """
    coalesces: bool = False
    """Identical requests in flight share one response, where it would be the same for all."""
    resumes: bool = True
    """A stream whose pod is lost is resumed on another."""
    cascade_min_model: str | None = None
    """In cascades that contain it: the smallest model that may answer."""
    cascade_max_model: str | None = None
    cascade_never_escalate: bool = False
    """In cascades: the first model's answer is returned without a check."""
    cascade_max_escalation_share: float = 1.0
    """In cascades: maximum share of its checked answers that may be escalated."""
    cascade_prefer: str = "cost"
    """In cascades: `cost` starts with the smallest model, `quality` with the largest."""
    cascade_bucket: str | None = None
    """In cascades that have it: the task bucket of its requests; None: it is computed from each prompt."""
    cascade_collect: bool = False
    """In cascades that collect: whether its requests may be sampled, sent to all models and labelled."""
    canary_compare: bool = False
    """Whether its requests may be sampled and answered by a canary too, to compare answers."""
    grants: frozenset[tuple[str, str, str]] = frozenset()
    """Where outside the fleet its requests may be computed: provider, region, model. Empty for nowhere."""
    provider_budget: float | None = None
    """Money for providers within `provider_period_s`; None for no limit of its own."""
    provider_period_s: float = 86_400.0
    provider_max_share: float = 1.0
    """Maximum share of its requests that may be sent to providers."""

    @property
    def provider_quota(self) -> Quota:
        """The quota of its account for providers."""
        return Quota(budget=self.provider_budget, budget_period_s=self.provider_period_s)

    @property
    def provider_account(self) -> Account:
        """Its account for providers, which every request to one is reserved on."""
        return Account(f"{self.name}/{PROVIDERS}", self.provider_quota)

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models

    def caller(self, *, key_id: str | None = None, group: str | None = None, user: str | None = None) -> Caller:
        """Make a caller on its behalf. A group that it does not name has no limits of its own."""
        quotas = {f"{self.name}": self.quota}
        if group is not None:
            quotas[f"{self.name}/group/{group}"] = self.groups.get(group, UNLIMITED)
        # A key without a user is a user by itself: limits per user would not bind it otherwise.
        if (somebody := user or key_id) is not None:
            quotas[f"{self.name}/user/{somebody}"] = self.per_user
        if key_id is not None and (own := self.keys.get(key_id)) is not None:
            quotas[f"{self.name}/key/{key_id}"] = own
        accounts = tuple(Account(path, quota) for path, quota in quotas.items() if not quota.is_unlimited)
        return Caller(self, key_id=key_id, group=group, user=user, accounts=accounts)


def quota_of(tenants: Mapping[str, Tenant], path: str) -> Quota | None:
    """Return the quota that a policy gives to the account at `path`, None where the policy has no such tenant.

    Paths are those that `Tenant.caller` makes; names of tenants and groups hold no slash, names of users may.
    """
    name, _, rest = path.partition("/")
    tenant = tenants.get(name)
    if tenant is None:
        return None
    if not rest:
        return tenant.quota
    if rest == PROVIDERS:
        return tenant.provider_quota
    kind, _, member = rest.partition("/")
    if kind == "key":
        return tenant.keys.get(member, UNLIMITED)
    return tenant.groups.get(member, UNLIMITED) if kind == "group" else tenant.per_user


def renewed(tenants: Mapping[str, Tenant], caller: Caller) -> Caller:
    """Return a caller with the accounts that the current policy gives it, where it came under another policy."""
    held = caller.tenant
    tenant = tenants.get(held.name or "")
    if tenant is None or (
        tenant.quota is held.quota
        and tenant.per_user is held.per_user
        and tenant.groups is held.groups
        and tenant.keys is held.keys
    ):
        return caller
    accounts = tenant.caller(key_id=caller.key_id, group=caller.group, user=caller.user).accounts
    return replace(caller, accounts=accounts)


ANONYMOUS_TENANT = Tenant()
"""The tenant of all requests without a policy."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller on a tenant's behalf: the tenant, and the group and user that the key or token names."""

    tenant: Tenant = ANONYMOUS_TENANT
    key_id: str | None = None
    """Which key was shown; fit to be logged."""
    group: str | None = None
    user: str | None = None
    accounts: tuple[Account, ...] = ()
    """All that must have room for a request, the tenant's own first. Those without limits are left out."""


ANONYMOUS_CALLER = Caller()
"""The caller of all requests without a policy."""
