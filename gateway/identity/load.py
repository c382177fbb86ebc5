"""The policy that the settings name, checked against what it leans on: key files, prices, the library for tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from gateway.config.loading import IN_POLICY, beside
from gateway.config.models import ModelEntry
from gateway.config.settings import Settings
from gateway.identity.key_store import Files
from gateway.identity.tokens import read_keys
from tenancy.document import Fault, Invalid, Wrong
from tenancy.policy import Policy
from tenancy.reading.policy import read_policy
from tenancy.tenants import Tenant


def load_policy(settings: Settings, variables: Mapping[str, str]) -> Policy | None:
    """None where the settings name none. Raises `Invalid`."""
    return None if settings.policy is None else read_file(settings.policy, variables, settings.model_table)


def read_file(path: Path, variables: Mapping[str, str], prices: Mapping[str, ModelEntry] | None) -> Policy:
    """The policy of one file. Raises `Invalid`, with the file's name before each path. Without `prices` budgets go
    unchecked.
    """
    try:
        policy = read_policy(path.read_text(encoding="utf-8"), variables, Files(), beside(path, IN_POLICY))
        if faults := [*_bad_keys(policy), *_unpriced(policy, prices)]:
            raise Invalid(faults)
    except Invalid as invalid:
        raise Invalid([fault.within(path) for fault in invalid.faults]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid([Fault(str(path), f"cannot be read: {error}")]) from None
    return policy


def _bad_keys(policy: Policy) -> Iterator[Fault]:
    if policy.jwt is None:
        return
    if find_spec("jwt") is None or find_spec("cryptography") is None:
        yield Fault("auth.jwt", "needs a library: pip install 'hearth-gateway[jwt]'")
    elif policy.jwt.jwks is not None:
        try:
            read_keys(policy.jwt.jwks)
        except Wrong as wrong:
            yield Fault("auth.jwt.jwks_file", str(wrong))


def _unpriced(policy: Policy, prices: Mapping[str, ModelEntry] | None) -> Iterator[Fault]:
    """A budget binds only where everything that is used has a price."""
    if prices is None:
        return
    for name, tenant in policy.tenants.items():
        if not _has_budget(tenant):
            continue
        if tenant.models is None:
            yield Fault(f"tenants.{name}.models", "is missing: a budget needs to know which models it pays for")
        for model in sorted(tenant.models or ()):
            entry = prices.get(model)
            if entry is None or entry.input_cost_per_token is None or entry.output_cost_per_token is None:
                words = f"`{model}` has no price in the model_list of the configuration"
                yield Fault(f"tenants.{name}.max_budget", words)


def _has_budget(tenant: Tenant) -> bool:
    return any(quota.budget is not None for quota in (tenant.quota, tenant.per_user, *tenant.groups.values()))
