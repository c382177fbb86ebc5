"""Reads `auth` of a policy: inline keys, key files, the HMAC secret, and the accepted token issuer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tenancy.document import ConfigError, DocumentTable, InvalidValue, join, text
from tenancy.policy import HMAC, KeyFile, PolicyFiles, TokenRules
from tenancy.reading.fields import JWT, KEY, KEY_LIMITS, NAME, SECRET, digest
from tenancy.reading.renamed_keys import RENAMED_API_KEY_KEYS, check_renamed, reject_renamed
from tenancy.reading.tenants import read_fields_of


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One key as the policy says it: its path, its owner, and its other fields."""

    path: str
    tenant: str
    digest: str = field(repr=False)
    values: Mapping[str, Any]
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Its own limits: fields of `Quota`."""


@dataclass(frozen=True, slots=True)
class AuthRules:
    """What `auth` says."""

    keys: tuple[KeyEntry, ...] = ()
    hmac_secret: str | None = field(default=None, repr=False)
    jwt: TokenRules | None = None
    default_tenant: str | None = None
    files: tuple[str, ...] = ()
    """Those that it names."""


def read_auth(root: DocumentTable, policy_files: PolicyFiles) -> AuthRules:
    """What `auth` says, with nothing checked against the tenants."""
    table = root.table("auth")
    if table is None:
        root.error("auth", "is required: set at least one of keys, keys_dir, jwt, default_tenant")
        return AuthRules()
    if not any(key in table for key in AUTH_METHODS) and not table.errors:
        table.error("keys", "set at least one of keys, keys_dir, jwt, default_tenant")
    auth = AuthRules(
        keys=(*_inline_keys(table.table("keys")), *_filed_keys(table, policy_files)),
        hmac_secret=_hmac_secret(table, policy_files),
        jwt=_token_rules(table.table("jwt"), policy_files),
        default_tenant=table.get("default_tenant", NAME.parse, None),
        files=tuple(_named_files(table)),
    )
    for key in auth.keys:
        if key.digest.startswith(HMAC) and auth.hmac_secret is None:
            table.errors.append(
                ConfigError(key.path, "is an HMAC digest; set auth.hmac_secret or auth.hmac_secret_file")
            )
    table.close()
    return auth


def _named_files(table: DocumentTable) -> Iterator[str]:
    jwt = table.table("jwt")
    places = [(table, "keys_dir"), (table, "hmac_secret_file"), (jwt, "jwks_file")]
    for entry_path, key in places:
        if entry_path is not None and isinstance(path := entry_path.get(key, _anything, None), str):
            yield path


def _anything(value: object) -> object:
    return value


def _inline_keys(keys: DocumentTable | None) -> Iterator[KeyEntry]:
    if keys is None:
        return
    for tenant in keys.keys:
        for at, (value,) in enumerate(keys.each(tenant, lambda value: (value,)) or ()):
            path = f"{join(keys.path, tenant)}[{at}]"
            table = DocumentTable(value if isinstance(value, dict) else {"digest": value}, path, keys.errors)
            if "digest" not in table:
                table.error("digest", "is missing")
            reject_renamed(table, RENAMED_API_KEY_KEYS)
            values, limits = read_fields_of(table, KEY), read_fields_of(table, KEY_LIMITS)
            if "budget_duration" in table and "max_budget" not in table:
                table.error("budget_duration", NEEDS_BUDGET)
            table.close()
            if found := values.pop("digest", ""):
                yield KeyEntry(path, tenant, found, values, limits)


def _filed_keys(auth: DocumentTable, policy_files: PolicyFiles) -> Iterator[KeyEntry]:
    folder = auth.get("keys_dir", text, "")
    if not folder:
        return
    try:
        for file in policy_files.key_files(folder):
            yield from _filed(f"{folder}/{file.tenant}/{file.key_id}", file, auth.errors)
    except InvalidValue as wrong:
        auth.error("keys_dir", str(wrong))


def _filed(path: str, file: KeyFile, faults: list[ConfigError]) -> Iterator[KeyEntry]:
    try:
        found, values = read_key_file(file.content)
    except InvalidValue as wrong:
        faults.append(ConfigError(path, str(wrong)))
    else:
        limits = {KEY_LIMITS[key].field: values.pop(key) for key in KEY_LIMITS if key in values}
        yield KeyEntry(path, file.tenant, found, {"id": file.key_id, **values}, limits)


def read_key_file(content: str) -> tuple[str, dict[str, Any]]:
    """Return a digest, and the fields behind it: `user=ann group=interns expires_at=2026-12-31 rpm=60`.

    Raises `InvalidValue`.
    """
    first, *rest = content.split() or [""]
    found, values = digest(first), {}
    for given in rest:
        key, equals, value = given.partition("=")
        check_renamed(key, RENAMED_API_KEY_KEYS)
        if not equals or key not in _KEY_FILE_FIELDS or key in values:
            raise InvalidValue(
                f"after the digest, only {', '.join(f'{known}=' for known in _KEY_FILE_FIELDS)} are allowed, each once"
            )
        values[key] = (KEY_LIMITS.get(key) or KEY[key]).kind.parse(value)
    if "budget_duration" in values and "max_budget" not in values:
        raise InvalidValue(f"budget_duration {NEEDS_BUDGET}")
    return found, values


def _hmac_secret(auth: DocumentTable, policy_files: PolicyFiles) -> str | None:
    given: str | None = auth.get("hmac_secret", SECRET.parse, None)
    filed: str | None = auth.get(
        "hmac_secret_file", lambda value: SECRET.parse(policy_files.text(text(value)).strip()), None
    )
    if given and filed:
        auth.error("hmac_secret_file", "conflicts with hmac_secret; set only one")
    return given or filed


def _token_rules(table: DocumentTable | None, policy_files: PolicyFiles) -> TokenRules | None:
    if table is None:
        return None
    for key in ("issuer", "audiences"):
        if key not in table:
            table.error(key, "is missing")
    given = read_fields_of(table, JWT)
    if path := given.pop("jwks", None):
        given["jwks"] = table.get("jwks_file", lambda _: policy_files.text(path), None)
        if "jwks_url" in given:
            table.error("jwks_file", "conflicts with jwks_url; set only one")
    if "tenant_claim" not in given and "default_tenant" not in given:
        table.error("tenant_claim", "set tenant_claim or default_tenant")
    table.close()
    return TokenRules(issuer=given.pop("issuer", ""), audiences=given.pop("audiences", ()), **given)


AUTH_METHODS = ("keys", "keys_dir", "jwt", "default_tenant")

_KEY_FILE_FIELDS = ("group", "user", "expires_at", *KEY_LIMITS)

NEEDS_BUDGET = "requires max_budget"
