"""The policy file: whose key is whose, and which models each tenant may use.

What stands in it binds. A word that this version cannot enforce is therefore refused, not skipped. Reads no file: the
text, and what finds key files, are arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tenancy.document import Fault, Invalid, Table, Wrong, join, read_document, text
from tenancy.tenants import Tenant

NOT_ENFORCED = "not enforced by this version"

LATER = ("tiers",)
LATER_OF_AUTH = ("jwt", "hmac_secret")
LATER_OF_TENANT = (
    *("tier", "rpm", "tpm", "max_tokens", "max_parallel_requests", "max_budget", "budget_duration", "max_rung"),
    *("per_user", "allowed_regions", "cache_isolation", "on_overload", "weight", "priority", "groups"),
)


@dataclass(frozen=True, slots=True)
class KeyFile:
    """One file of `auth.keys_dir`: `<tenant>/<key id>`, holding the sha256 of a key in hexadecimal."""

    tenant: str
    key_id: str
    content: str


KeyFiles = Callable[[str], Iterable[KeyFile]]
"""Finds the key files of a folder; raises `Wrong` where there is no such folder."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the file says. `by_digest`: sha256 of a key, in lower-case hexadecimal, to its tenant."""

    by_digest: Mapping[str, Tenant] = field(repr=False)
    tenants: Mapping[str, Tenant]


def read_policy(source: str, variables: Mapping[str, str], key_files: KeyFiles) -> Policy:
    """Read a policy. Raises `Invalid` with every fault."""
    root = read_document(source, variables)
    for word in LATER:
        root.refuse(word, NOT_ENFORCED)
    usual = _models(root.table("defaults"), None)
    named = _tenants(root.table("tenants"), usual)
    digests = _digests(root, key_files)
    root.close()
    by_digest: dict[str, Tenant] = {}
    tenants = dict(named or {})
    for path, name, digest in digests:
        if named is not None and name not in named:
            root.faults.append(Fault(path, f"`{name}` is no tenant of this policy"))
            continue
        tenant = tenants.setdefault(name, Tenant(name, usual))
        if by_digest.setdefault(digest, tenant) is not tenant:
            root.faults.append(Fault(path, f"this key is also a key of `{by_digest[digest].name}`"))
    if root.faults:
        raise Invalid(root.faults)
    return Policy(by_digest, tenants)


def _tenants(table: Table | None, usual: frozenset[str] | None) -> dict[str, Tenant] | None:
    if table is None:
        return None
    tenants = {}
    for name in table.keys:
        # `search: {}` and `search:` both name a tenant that has what is usual.
        tenants[name] = Tenant(name, _models(table.table(name), usual))
    return tenants


def _models(table: Table | None, usual: frozenset[str] | None) -> frozenset[str] | None:
    if table is None:
        return usual
    for word in LATER_OF_TENANT:
        table.refuse(word, NOT_ENFORCED)
    models = table.each("models", text)
    table.close()
    return usual if models is None else frozenset(models)


def _digests(root: Table, key_files: KeyFiles) -> list[tuple[str, str, str]]:
    """(path, tenant, digest) of every key."""
    auth = root.table("auth")
    if auth is None:
        root.fault("auth", "is missing: without keys nobody can be told apart")
        return []
    for word in LATER_OF_AUTH:
        auth.refuse(word, NOT_ENFORCED)
    if "keys" not in auth and "keys_dir" not in auth and not root.faults:
        auth.fault("keys", "is missing, and so is keys_dir: nobody could be let in")
    found = [*_inline_keys(auth.table("keys")), *_filed_keys(auth, key_files)]
    auth.close()
    return found


def _inline_keys(keys: Table | None) -> Iterable[tuple[str, str, str]]:
    for tenant in keys.keys if keys else ():
        path = join(keys.path, tenant) if keys else ""
        for at, digest in enumerate((keys.each(tenant, sha256_hex) if keys else ()) or ()):
            yield f"{path}[{at}]", tenant, digest


def _filed_keys(auth: Table, key_files: KeyFiles) -> Iterable[tuple[str, str, str]]:
    folder = auth.get("keys_dir", text, "")
    if not folder:
        return
    try:
        for file in key_files(folder):
            path = f"{folder}/{file.tenant}/{file.key_id}"
            try:
                yield path, file.tenant, sha256_hex(file.content.strip())
            except Wrong as wrong:
                auth.faults.append(Fault(path, str(wrong)))
    except Wrong as wrong:
        auth.fault("keys_dir", str(wrong))


_SHA256 = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})")


def sha256_hex(value: object) -> str:
    """A sha256 in hexadecimal. A key itself must never stand in a file."""
    match = _SHA256.fullmatch(text(value))
    if match is None:
        raise Wrong("must be the sha256 of a key: 64 hexadecimal digits")
    return match[1].lower()
