"""The JSON Schema of a policy, made of the very words that the reader goes by.

What one word has to do with another (a tier that is named, a reserve that is left) only the reader knows.
"""

from __future__ import annotations

from collections.abc import Mapping

from tenancy.json_schema import DRAFT, Schema, described, named, nullable, requires, table
from tenancy.reading.auth import AUTH_METHODS
from tenancy.reading.fields import DIGEST, HEADERS, JWT, KEY, NAME, QUOTA, SECRET, TENANT, TEXT, TIER, FieldSpec


def policy_schema() -> Schema:
    """The whole."""
    tenant = _tenant()
    return {
        "$schema": DRAFT,
        "title": "Hearth policy",
        **table(
            {
                "auth": described(_auth(), "Who may come in: keys, tokens, or whoever shows nothing."),
                "tiers": described(named(_table(TIER), NAME.schema), "Service levels, by name."),
                "defaults": described(tenant, "What every tenant gets that does not say otherwise, word by word."),
                "tenants": described(named(tenant, NAME.schema), "Who there is; others cannot come in."),
                "headers": described(_table(HEADERS), "Request headers that count when a trusted proxy sends them."),
            },
            required=("auth",),
        ),
    }


def _table(words: Mapping[str, FieldSpec], *, required: tuple[str, ...] = (), **more: object) -> Schema:
    return table(_properties(words), required=required, **more)


def _properties(words: Mapping[str, FieldSpec]) -> dict[str, Schema]:
    return {key: described(word.kind.schema, word.help) for key, word in words.items()}


def _tenant() -> Schema:
    quota = _table(QUOTA)
    return table(
        {
            **_properties(TENANT),
            **_properties(QUOTA),
            "per_user": described(quota, "Limits of each of its users by itself."),
            "groups": described(named(quota, NAME.schema), "Limits of each of its groups, all members together."),
        }
    )


def _auth() -> Schema:
    key: Schema = {"anyOf": [DIGEST.schema, _table(KEY, required=("digest",))]}
    keys: Schema = {"type": "object", "additionalProperties": nullable({"type": "array", "items": key})}
    return table(
        {
            "keys": described(keys, "Digests of keys, by tenant."),
            "keys_dir": described(TEXT.schema, "A folder of key files: <tenant>/<key id>, each holding a digest."),
            "hmac_secret": described(SECRET.schema, "With which digests were made that begin with hmac-sha256:."),
            "hmac_secret_file": described(TEXT.schema, "The file that holds it, instead."),
            "default_tenant": described(NAME.schema, "Whose is whoever shows no key; nobody's unless it is said."),
            "jwt": described(
                _table(
                    JWT,
                    required=("issuer", "audiences"),
                    anyOf=[requires("tenant_claim"), requires("default_tenant")],
                ),
                "Whose tokens are believed, and what they say. Needs the extra `jwt`.",
            ),
        },
        anyOf=[requires(key) for key in AUTH_METHODS],
    )
