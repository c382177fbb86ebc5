"""The section `key_api`: listener, key folder and operators' identities; value, reader and JSON Schema."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gateway.config.fields import (
    ADDRESS_SCHEMA,
    check_extra,
    mutual_tls_schema,
    parse_address,
    parse_writable_path,
    read_mutual_tls,
)
from gateway.runtime.addresses import Address, MutualTlsFiles
from tenancy.document import DocumentTable, InvalidValue, one_of, text
from tenancy.json_schema import Schema, described, table
from tenancy.policy import TokenRules
from tenancy.reading.fields import NAMES, TEXT, name, some_names, url


class ActorRole(StrEnum):
    """What an actor of the key API may do."""

    VIEWER = "viewer"
    """Read the keys of all tenants."""
    OPERATOR = "operator"
    """Read and change them."""
    TENANT_ADMIN = "tenant-admin"
    """Read and change those of one tenant."""


@dataclass(frozen=True, slots=True)
class ClientRole:
    """The role of a client certificate by its name."""

    name: str
    role: ActorRole
    tenant: str | None = None
    """Of a tenant-admin."""


@dataclass(frozen=True, slots=True)
class OidcConfig:
    """Which tokens of an OpenID Connect provider are accepted, and the claims that are read."""

    rules: TokenRules
    role_claim: str = "hearth_role"
    tenant_claim: str = "hearth_tenant"


@dataclass(frozen=True, slots=True)
class KeyApiConfig:
    """The key API, where configured."""

    listen: Address
    keys_dir: Path
    """The policy's `auth.keys_dir`."""
    audit_log: Path
    tls: MutualTlsFiles | None = None
    oidc: OidcConfig | None = None
    clients: tuple[ClientRole, ...] = ()


def read_key_store(root: DocumentTable) -> Path | None:
    """Read `key_store`: the folder that mirrors the keys in Redis. Returns None if it is absent."""
    section = root.table("key_store")
    if section is None:
        return None
    found: Path | None = section.get_required("mirror_dir", _folder, None)
    section.close()
    return found


def read_key_api(root: DocumentTable) -> KeyApiConfig | None:
    """Read the section. Returns None if it is absent: no listener."""
    section = root.table("key_api")
    if section is None:
        return None
    listen = section.get_required("listen", parse_address, None)
    keys_dir = section.get_required("keys_dir", _folder, None)
    audit_log = section.get_required("audit_log", parse_writable_path, None)
    tls_section = section.table("tls")
    has_tls, has_client_ca = tls_section is not None, tls_section is not None and "client_ca" in tls_section
    tls, oidc = read_mutual_tls(tls_section), _oidc(section.table("oidc"))
    clients = tuple(_client(each) for each in section.tables("clients"))
    section.close()
    if oidc is None and not clients:
        section.error("oidc", "is missing: set oidc, or clients with tls.client_ca")
    if clients and not has_client_ca:
        section.error("clients", "needs tls.client_ca")
    if listen is not None and not listen.is_loopback and not has_tls:
        section.error("tls", "is missing: without it the key API listens on a loopback address only")
    if listen is None or keys_dir is None or audit_log is None:
        return None
    return KeyApiConfig(listen, keys_dir, audit_log, tls, oidc, clients)


def _folder(value: object) -> Path:
    path = Path(text(value))
    if not path.is_dir():
        raise InvalidValue(f"folder `{path}` does not exist")
    return path


def _oidc(section: DocumentTable | None) -> OidcConfig | None:
    if section is None:
        return None
    check_extra(section, "jwt", "jwt", "cryptography")
    issuer = section.get_required("issuer", url, "")
    audiences: tuple[str, ...] = section.get_required("audiences", some_names, tuple[str, ...]())
    jwks_url = section.get("jwks_url", url, None)
    found = OidcConfig(
        TokenRules(issuer, audiences, jwks_url=jwks_url),
        section.get("role_claim", text, "hearth_role"),
        section.get("tenant_claim", text, "hearth_tenant"),
    )
    section.close()
    return found


def _client(section: DocumentTable) -> ClientRole:
    role = ActorRole(
        section.get_required("role", one_of(tuple(each.value for each in ActorRole)), ActorRole.VIEWER.value)
    )
    found = ClientRole(section.get_required("name", text, ""), role, section.get("tenant", name, None))
    if (found.tenant is not None) != (role is ActorRole.TENANT_ADMIN):
        section.error("tenant", "is set for the role tenant-admin, and for no other")
    section.close()
    return found


def key_store_schema() -> Schema:
    return table(
        {"mirror_dir": described(TEXT.schema, "Folder that mirrors the keys in Redis: the policy's auth.keys_dir.")},
        required=("mirror_dir",),
    )


def key_api_schema() -> Schema:
    roles: Schema = {"enum": [each.value for each in ActorRole]}
    client = table(
        {
            "name": described(TEXT.schema, "Name in the client's certificate."),
            "role": described(roles, "Role of requests with that certificate."),
            "tenant": described(TEXT.schema, "Tenant of a tenant-admin."),
        },
        required=("name", "role"),
    )
    return table(
        {
            "listen": described(ADDRESS_SCHEMA, "Listen address; beyond loopback only with tls."),
            "keys_dir": described(TEXT.schema, "Folder of keys: the policy's auth.keys_dir."),
            "audit_log": described(TEXT.schema, "File to which each change is appended."),
            "tls": described(
                mutual_tls_schema("CA certificates of the clients' certificates; absent: none required."),
                "PEM files of this listener.",
            ),
            "oidc": described(
                table(
                    {
                        "issuer": described(TEXT.schema, "Issuer of the tokens."),
                        "audiences": described(NAMES.schema, "Accepted audiences."),
                        "jwks_url": described(TEXT.schema, "URL of its keys; absent: by discovery."),
                        "role_claim": described(TEXT.schema, "Claim of the role (default hearth_role)."),
                        "tenant_claim": described(
                            TEXT.schema, "Claim of a tenant-admin's tenant (default hearth_tenant)."
                        ),
                    },
                    required=("issuer", "audiences"),
                ),
                "OpenID Connect provider of the operators.",
            ),
            "clients": described({"type": "array", "items": client}, "Roles of client certificates by their name."),
        },
        required=("listen", "keys_dir", "audit_log"),
    )
