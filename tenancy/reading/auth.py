"""`auth` of a policy: keys in place and in files, the secret of their digests, whose tokens are believed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tenancy.document import Fault, Table, Wrong, join, text
from tenancy.policy import HMAC, KeyFile, Shelf, TokenRules
from tenancy.reading.fields import JWT, KEY, NAME, SECRET, digest
from tenancy.reading.tenants import read_words


@dataclass(frozen=True, slots=True)
class Shown:
    """One key as the policy says it: where it stands, whose it is, and what else is said."""

    path: str
    tenant: str
    digest: str = field(repr=False)
    words: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Auth:
    """What `auth` says."""

    keys: tuple[Shown, ...] = ()
    hmac_secret: str | None = field(default=None, repr=False)
    jwt: TokenRules | None = None
    default_tenant: str | None = None
    files: tuple[str, ...] = ()
    """Those that it names."""


def read_auth(root: Table, shelf: Shelf) -> Auth:
    """What `auth` says, with nothing checked against the tenants."""
    table = root.table("auth")
    if table is None:
        root.fault("auth", "is missing: without it nobody can be told apart")
        return Auth()
    if not any(key in table for key in WAYS_IN) and not table.faults:
        table.fault("keys", "is missing, and so are keys_dir, jwt and default_tenant: nobody could be let in")
    auth = Auth(
        keys=(*_inline_keys(table.table("keys")), *_filed_keys(table, shelf)),
        hmac_secret=_hmac_secret(table, shelf),
        jwt=_token_rules(table.table("jwt"), shelf),
        default_tenant=table.get("default_tenant", NAME.parse, None),
        files=tuple(_named_files(table)),
    )
    for key in auth.keys:
        if key.digest.startswith(HMAC) and auth.hmac_secret is None:
            table.faults.append(Fault(key.path, "is an HMAC, and auth has no hmac_secret"))
    table.close()
    return auth


def _named_files(table: Table) -> Iterator[str]:
    jwt = table.table("jwt")
    places = [(table, "keys_dir"), (table, "hmac_secret_file"), (jwt, "jwks_file")]
    for place, key in places:
        if place is not None and isinstance(path := place.get(key, _anything, None), str):
            yield path


def _anything(value: object) -> object:
    return value


def _inline_keys(keys: Table | None) -> Iterator[Shown]:
    if keys is None:
        return
    for tenant in keys.keys:
        for at, (value,) in enumerate(keys.each(tenant, lambda value: (value,)) or ()):
            path = f"{join(keys.path, tenant)}[{at}]"
            table = Table(value if isinstance(value, dict) else {"digest": value}, path, keys.faults)
            if "digest" not in table:
                table.fault("digest", "is missing")
            words = read_words(table, KEY)
            table.close()
            if found := words.pop("digest", ""):
                yield Shown(path, tenant, found, words)


def _filed_keys(auth: Table, shelf: Shelf) -> Iterator[Shown]:
    folder = auth.get("keys_dir", text, "")
    if not folder:
        return
    try:
        for file in shelf.key_files(folder):
            yield from _filed(f"{folder}/{file.tenant}/{file.key_id}", file, auth.faults)
    except Wrong as wrong:
        auth.fault("keys_dir", str(wrong))


def _filed(path: str, file: KeyFile, faults: list[Fault]) -> Iterator[Shown]:
    try:
        found, words = read_key_file(file.content)
    except Wrong as wrong:
        faults.append(Fault(path, str(wrong)))
    else:
        yield Shown(path, file.tenant, found, {"id": file.key_id, **words})


def read_key_file(content: str) -> tuple[str, dict[str, Any]]:
    """A digest, and what stands behind it: `user=ann group=interns until=2026-12-31`. Raises `Wrong`."""
    first, *rest = content.split() or [""]
    found, words = digest(first), {}
    for said in rest:
        key, equals, value = said.partition("=")
        if not equals or key not in _BESIDE_DIGEST or key in words:
            raise Wrong(f"behind the digest may stand {', '.join(f'{known}=' for known in _BESIDE_DIGEST)}, each once")
        words[key] = KEY[key].kind.parse(value)
    return found, words


def _hmac_secret(auth: Table, shelf: Shelf) -> str | None:
    given: str | None = auth.get("hmac_secret", SECRET.parse, None)
    filed: str | None = auth.get("hmac_secret_file", lambda value: SECRET.parse(shelf.text(text(value)).strip()), None)
    if given and filed:
        auth.fault("hmac_secret_file", "stands beside hmac_secret: which one is meant?")
    return given or filed


def _token_rules(table: Table | None, shelf: Shelf) -> TokenRules | None:
    if table is None:
        return None
    for key in ("issuer", "audiences"):
        if key not in table:
            table.fault(key, "is missing")
    said = read_words(table, JWT)
    if path := said.pop("jwks", None):
        said["jwks"] = table.get("jwks_file", lambda _: shelf.text(path), None)
        if "jwks_url" in said:
            table.fault("jwks_file", "stands beside jwks_url: which one is meant?")
    if "tenant_claim" not in said and "default_tenant" not in said:
        table.fault("tenant_claim", "is missing, and so is default_tenant: whose would a token be?")
    table.close()
    return TokenRules(issuer=said.pop("issuer", ""), audiences=said.pop("audiences", ()), **said)


WAYS_IN = ("keys", "keys_dir", "jwt", "default_tenant")

_BESIDE_DIGEST = ("group", "user", "until")
