"""A policy file as a whole: its parts read, and checked against each other. Every fault at once, each with its path.

What stands in it binds. A word that this version cannot enforce is therefore refused, not skipped. Reads no file: the
text, and what finds the files that it names, are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from tenancy.document import Fault, Invalid, Locate, Table, Wrong, as_it_stands, read_document
from tenancy.policy import HMAC, HeaderRules, Key, Policy, Shelf
from tenancy.reading.auth import Auth, Shown, read_auth
from tenancy.reading.fields import HEADERS, NAME
from tenancy.reading.tenants import Tenants, names_in, read_said, read_tiers, read_words
from tenancy.tenants import Caller, Tenant

ID_DIGITS = 12
"""Of its digest, for a key that has no name."""


def read_policy(source: str, variables: Mapping[str, str], shelf: Shelf, locate: Locate = as_it_stands) -> Policy:
    """Read a policy; `locate` makes of a relative file name one beside it. Raises `Invalid` with every fault."""
    root = read_document(source, variables, locate)
    tiers = read_tiers(root.table("tiers"))
    usual = root.table("defaults")
    maker = Tenants(read_said(usual if usual is not None else Table({}, "defaults", root.faults)), tiers)
    table, auth = root.table("tenants"), read_auth(root, shelf)
    tenants = _brought(auth, maker, root) if table is None else _named(table, maker)
    policy = Policy(
        _keys(auth, tenants, root.faults),
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
    if root.faults:
        raise Invalid(root.faults)
    return policy


def _named(table: Table, maker: Tenants) -> dict[str, Tenant]:
    tenants = {}
    for name in names_in(table):
        # `search: {}` and `search:` both name a tenant that has what is usual.
        entry = table.table(name)
        tenants[name] = maker.unnamed(name) if entry is None else maker.named(name, read_said(entry))
    return tenants


def _brought(auth: Auth, maker: Tenants, root: Table) -> dict[str, Tenant]:
    """Where no tenants are named, every key brings its own."""
    if auth.jwt is not None:
        root.fault("tenants", "is missing: tokens may not make tenants")
    tenants: dict[str, Tenant] = {}
    for path, name in [*((key.path, key.tenant) for key in auth.keys), ("auth.default_tenant", auth.default_tenant)]:
        try:
            if name is not None:
                tenants.setdefault(NAME.parse(name), maker.unnamed(name))
        except Wrong as wrong:
            root.faults.append(Fault(path, f"the tenant's name {wrong}"))
    return tenants


def _keys(auth: Auth, tenants: Mapping[str, Tenant], faults: list[Fault]) -> dict[str, Key]:
    keys: dict[str, Key] = {}
    for shown in auth.keys:
        tenant = tenants.get(shown.tenant)
        if tenant is None:
            faults.append(Fault(shown.path, f"`{shown.tenant}` is no tenant of this policy"))
            continue
        key, other = _key(shown, tenant, faults), keys.get(shown.digest)
        if other is not None and other.caller.tenant is not tenant:
            faults.append(Fault(shown.path, f"this key is also a key of `{other.caller.tenant.name}`"))
        keys[shown.digest] = key
    return keys


def _key(shown: Shown, tenant: Tenant, faults: list[Fault]) -> Key:
    words = shown.words
    group = words.get("group")
    if group is not None and group not in tenant.groups:
        faults.append(Fault(shown.path, f"`{group}` is no group of `{shown.tenant}`"))
    key_id = words.get("id") or shown.digest.removeprefix(HMAC)[:ID_DIGITS]
    return Key(tenant.caller(key_id=key_id, group=group, user=words.get("user")), words.get("until", inf))


def _default(auth: Auth, tenants: Mapping[str, Tenant], root: Table) -> Caller | None:
    for path, name in (("auth", auth.default_tenant), ("auth.jwt", auth.jwt and auth.jwt.default_tenant)):
        if name is not None and name not in tenants:
            root.faults.append(Fault(f"{path}.default_tenant", f"`{name}` is no tenant of this policy"))
    tenant = tenants.get(auth.default_tenant or "")
    return None if tenant is None else tenant.caller()


def _headers(table: Table | None) -> HeaderRules:
    if table is None:
        return HeaderRules()
    rules = HeaderRules(**read_words(table, HEADERS))
    if len(set(rules.names)) < len(rules.names):
        table.blame("one header cannot say two things")
    table.close()
    return rules
