"""A policy file as a whole: its parts read, and checked against each other. Every fault at once, each with its path.

A key that this version cannot enforce is rejected, not skipped. Reads no file: the text, and the reader of files that
it names, are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from tenancy.document import ConfigError, DocumentTable, InvalidDocument, InvalidValue, Locate, read_document, unchanged
from tenancy.policy import HMAC, ApiKey, HeaderRules, Policy, PolicyFiles
from tenancy.reading.auth import AuthRules, KeyEntry, read_auth
from tenancy.reading.fields import HEADERS, NAME
from tenancy.reading.tenants import Tenants, make_quota, read_fields_of, read_tenant_spec, read_tiers, tenant_names
from tenancy.tenants import Caller, Quota, Tenant

ID_DIGITS = 12
"""Of its digest, for a key that has no name."""


def read_policy(
    source: str, variables: Mapping[str, str], policy_files: PolicyFiles, locate: Locate = unchanged
) -> Policy:
    """Read a policy; `locate` resolves relative file names. Raises `InvalidDocument` with every fault."""
    root = read_document(source, variables, locate)
    tiers = read_tiers(root.table("tiers"))
    defaults = root.table("defaults")
    maker = Tenants(
        read_tenant_spec(defaults if defaults is not None else DocumentTable({}, "defaults", root.errors)), tiers
    )
    table, auth = root.table("tenants"), read_auth(root, policy_files)
    tenants = _brought(auth, maker, root) if table is None else _named(table, maker)
    tenants = _with_key_limits(auth, tenants, root.errors)
    policy = Policy(
        _keys(auth, tenants, root.errors),
        tenants,
        tiers,
        default=_default(auth, tenants, root),
        hmac_secret=auth.hmac_secret,
        jwt=auth.jwt,
        headers=_headers(root.table("headers")),
        files=auth.files,
    )
    maker.close()
    root.close()
    if root.errors:
        raise InvalidDocument(root.errors)
    return policy


def _named(table: DocumentTable, maker: Tenants) -> dict[str, Tenant]:
    tenants = {}
    for name in tenant_names(table):
        # `search: {}` and `search:` both name a tenant that has what is usual.
        entry = table.table(name)
        tenants[name] = maker.unnamed(name) if entry is None else maker.named(name, read_tenant_spec(entry))
    return tenants


def _brought(auth: AuthRules, maker: Tenants, root: DocumentTable) -> dict[str, Tenant]:
    """Where no tenants are named, every key brings its own."""
    if auth.jwt is not None:
        root.error("tenants", "is required with auth.jwt: tokens cannot create tenants")
    tenants: dict[str, Tenant] = {}
    for path, name in [*((key.path, key.tenant) for key in auth.keys), ("auth.default_tenant", auth.default_tenant)]:
        try:
            if name is not None:
                tenants.setdefault(NAME.parse(name), maker.unnamed(name))
        except InvalidValue as wrong:
            root.errors.append(ConfigError(path, f"tenant name {wrong}"))
    return tenants


def _with_key_limits(auth: AuthRules, tenants: Mapping[str, Tenant], faults: list[ConfigError]) -> dict[str, Tenant]:
    """Return the tenants with the limits of their keys. Keys with one id share an account, and need the same limits."""
    limits: dict[str, dict[str, Quota]] = {}
    for shown in auth.keys:
        own = limits.setdefault(shown.tenant, {})
        quota = make_quota(dict(shown.limits))
        if own.setdefault(_id_of(shown), quota) != quota:
            faults.append(ConfigError(shown.path, f"another key of `{shown.tenant}` has the same id and other limits"))
    found = dict(tenants)
    for name, own in limits.items():
        bound = {key_id: quota for key_id, quota in own.items() if not quota.is_unlimited}
        if bound and name in found:
            found[name] = replace(found[name], keys=bound)
    return found


def _id_of(shown: KeyEntry) -> str:
    return shown.values.get("id") or shown.digest.removeprefix(HMAC)[:ID_DIGITS]


def _keys(auth: AuthRules, tenants: Mapping[str, Tenant], faults: list[ConfigError]) -> dict[str, ApiKey]:
    keys: dict[str, ApiKey] = {}
    for shown in auth.keys:
        tenant = tenants.get(shown.tenant)
        if tenant is None:
            faults.append(ConfigError(shown.path, f"unknown tenant `{shown.tenant}`"))
            continue
        key, other = _key(shown, tenant, faults), keys.get(shown.digest)
        if other is not None and other.caller.tenant is not tenant:
            faults.append(
                ConfigError(shown.path, f"duplicate key: tenant `{other.caller.tenant.name}` has the same digest")
            )
        keys[shown.digest] = key
    return keys


def _key(shown: KeyEntry, tenant: Tenant, faults: list[ConfigError]) -> ApiKey:
    values = shown.values
    group = values.get("group")
    if group is not None and group not in tenant.groups:
        faults.append(ConfigError(shown.path, f"unknown group `{group}` of tenant `{shown.tenant}`"))
    return ApiKey(
        tenant.caller(key_id=_id_of(shown), group=group, user=values.get("user")), values.get("expires_at", inf)
    )


def _default(auth: AuthRules, tenants: Mapping[str, Tenant], root: DocumentTable) -> Caller | None:
    for path, name in (("auth", auth.default_tenant), ("auth.jwt", auth.jwt and auth.jwt.default_tenant)):
        if name is not None and name not in tenants:
            root.errors.append(ConfigError(f"{path}.default_tenant", f"unknown tenant `{name}`"))
    tenant = tenants.get(auth.default_tenant or "")
    return None if tenant is None else tenant.caller()


def _headers(table: DocumentTable | None) -> HeaderRules:
    if table is None:
        return HeaderRules()
    rules = HeaderRules(**read_fields_of(table, HEADERS))
    if len(set(rules.names)) < len(rules.names):
        table.add_error("a header is listed under more than one key")
    table.close()
    return rules
