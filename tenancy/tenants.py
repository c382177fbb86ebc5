"""Who asks, and what they may ask for. Values; know nothing of keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tenancy.quota import UNLIMITED, Account, Quota
from tenancy.tier import USUAL, Tier


@dataclass(frozen=True, slots=True)
class Tenant:
    """One customer of the gateway. The anonymous tenant has no name."""

    name: str | None = None
    models: frozenset[str] | None = None
    """Names of the models it may use, None for all."""
    tier: Tier = USUAL
    quota: Quota = UNLIMITED
    output_cap: int | None = None
    """Most tokens of one answer."""
    aliases: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What the tenant calls a model, to what it is called here."""
    downgrades: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The smaller model that answers for a model under overload."""
    regions: frozenset[str] | None = None
    """Where its requests may be computed, None for anywhere. A pod of unknown region is nowhere."""
    trust_domain: str | None = None
    """Whose KV blocks it may share, as the engines' `cache_salt`; None for everybody's."""

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


ANONYMOUS = Tenant()
"""Everybody, where no policy tells callers apart."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One who asks on a tenant's behalf: the tenant, and whatever of its groups and users the key or token names."""

    tenant: Tenant = ANONYMOUS
    key_id: str | None = None
    """Which key was shown; fit to be logged."""
    user: str | None = None
    accounts: tuple[Account, ...] = ()
    """All that must have room for a request, the tenant's own first."""


NOBODY = Caller()
"""Everybody's caller, where no policy tells callers apart."""
