"""JSON Schema of a policy, generated from the fields that the reader uses.

Relations between keys (an existing tier, a sum of shares) are checked by the reader only.
"""

from __future__ import annotations

from collections.abc import Mapping

from tenancy.json_schema import DRAFT, Schema, described, named, nullable, requires, table
from tenancy.reading.auth import AUTH_METHODS
from tenancy.reading.fields import (
    DIGEST,
    HEADERS,
    JWT,
    KEY,
    KEY_LIMITS,
    NAME,
    QUOTA,
    SECRET,
    TENANT,
    TEXT,
    TIER,
    FieldSpec,
)


def policy_schema() -> Schema:
    """The whole."""
    tenant = _tenant()
    return {
        "$schema": DRAFT,
        "title": "Hearth policy",
        **table(
            {
                "auth": described(
                    _auth(), "Authentication: API keys, tokens, and the tenant of requests without credentials."
                ),
                "tiers": described(
                    named(_table(TIER), NAME.schema), "Tiers (latency objectives and priorities), by name."
                ),
                "defaults": described(tenant, "Defaults of all tenants, key by key."),
                "tenants": described(named(tenant, NAME.schema), "The accepted tenants, by name."),
                "headers": described(_table(HEADERS), "Identity headers that are accepted from trusted proxies."),
            },
            required=("auth",),
        ),
    }


def _table(specs: Mapping[str, FieldSpec], *, required: tuple[str, ...] = (), **more: object) -> Schema:
    return table(_properties(specs), required=required, **more)


def _properties(specs: Mapping[str, FieldSpec]) -> dict[str, Schema]:
    return {key: described(spec.kind.schema, spec.help) for key, spec in specs.items()}


def _tenant() -> Schema:
    quota = _table(QUOTA)
    return table(
        {
            **_properties(TENANT),
            **_properties(QUOTA),
            "per_user": described(quota, "Limits of each user of the tenant."),
            "groups": described(named(quota, NAME.schema), "Limits of each group of the tenant, all members together."),
        }
    )


def _auth() -> Schema:
    key: Schema = {"anyOf": [DIGEST.schema, _table({**KEY, **KEY_LIMITS}, required=("digest",))]}
    keys: Schema = {"type": "object", "additionalProperties": nullable({"type": "array", "items": key})}
    return table(
        {
            "keys": described(keys, "Digests of keys, by tenant."),
            "keys_dir": described(TEXT.schema, "A folder of key files: <tenant>/<key id>, each holding a digest."),
            "hmac_secret": described(
                SECRET.schema, "HMAC key of digests that begin with hmac-sha256:, at least 16 characters."
            ),
            "hmac_secret_file": described(TEXT.schema, "File with the HMAC key, instead of hmac_secret."),
            "default_tenant": described(
                NAME.schema, "Tenant of requests without credentials. Default: such requests are rejected."
            ),
            "jwt": described(
                _table(
                    JWT,
                    required=("issuer", "audiences"),
                    anyOf=[requires("tenant_claim"), requires("default_tenant")],
                ),
                "Accepted token issuer and its claims. Requires the extra `jwt`.",
            ),
        },
        anyOf=[requires(key) for key in AUTH_METHODS],
    )
