"""The section `key_api`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.key_api import ActorRole, ClientRole, KeyApiConfig, OidcConfig
from gateway.config.loading import load_settings
from gateway.config.settings import read_settings
from gateway.runtime.addresses import Address, MutualTlsFiles
from tenancy.document import InvalidDocument
from tenancy.policy import TokenRules


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    """A section that is in order."""
    (tmp_path / "keys").mkdir()
    for name in ("cert", "key", "ca"):
        (tmp_path / name).write_text("x")
    return {
        "listen": "127.0.0.1:9092",
        "keys_dir": str(tmp_path / "keys"),
        "audit_log": str(tmp_path / "audit.jsonl"),
        "tls": {name: str(tmp_path / name.removeprefix("client_")) for name in ("cert", "key", "client_ca")},
        "oidc": {"issuer": "https://sso.example", "audiences": ["hearth"]},
        "clients": [
            {"name": "ci", "role": "operator"},
            {"name": "legal", "role": "tenant-admin", "tenant": "legal"},
        ],
    }


def read(section: dict[str, Any]) -> tuple[KeyApiConfig | None, list[str]]:
    settings, root = read_settings(yaml.safe_dump({"key_api": section}), {})
    return settings.key_api, [str(error) for error in root.errors]


def test_all_keys_are_read(given: dict[str, Any], tmp_path: Path) -> None:
    """Off where the section is absent."""
    found, errors = read(given)
    assert errors == []
    assert found == KeyApiConfig(
        Address("127.0.0.1", 9092),
        tmp_path / "keys",
        tmp_path / "audit.jsonl",
        MutualTlsFiles(tmp_path / "cert", tmp_path / "key", tmp_path / "ca"),
        OidcConfig(TokenRules("https://sso.example", ("hearth",))),
        (ClientRole("ci", ActorRole.OPERATOR), ClientRole("legal", ActorRole.TENANT_ADMIN, "legal")),
    )
    assert read_settings("{}", {})[0].key_api is None


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"oidc": None, "clients": None}, "key_api.oidc"),
        ({"tls": None}, "key_api.clients"),
        ({"listen": "0.0.0.0:9092", "tls": None, "clients": None}, "key_api.tls"),
        ({"keys_dir": "/nowhere/keys"}, "key_api.keys_dir"),
        ({"audit_log": None}, "key_api.audit_log"),
        ({"clients": [{"name": "a", "role": "root"}]}, "key_api.clients"),
        ({"clients": [{"name": "a", "role": "tenant-admin"}]}, "key_api.clients"),
        ({"clients": [{"name": "a", "role": "operator", "tenant": "legal"}]}, "key_api.clients"),
    ],
)
def test_an_open_door_is_a_fault(given: dict[str, Any], change: dict[str, Any], path: str) -> None:
    """Without an identity, without TLS beyond loopback, with a role that is none or that means another tenant."""
    section = {key: value for key, value in (given | change).items() if value is not None}
    _, errors = read(section)
    assert errors
    assert errors[0].startswith(path), errors


def test_keys_in_redis_need_a_redis_and_one_folder(tmp_path: Path) -> None:
    """The folder that the key API changes is the mirror."""
    for folder in ("keys", "other"):
        (tmp_path / folder).mkdir()
    config = tmp_path / "hearth.yaml"
    section = {
        "listen": "127.0.0.1:0",
        "keys_dir": "other",
        "audit_log": "audit.jsonl",
        "oidc": {"issuer": "https://sso.example", "audiences": ["hearth"]},
    }

    def faults(**document: object) -> list[str]:
        config.write_text(yaml.safe_dump(document))
        try:
            settings = load_settings({}, {}, config)
        except InvalidDocument as invalid:
            return [str(error) for error in invalid.errors]
        assert settings.key_store == tmp_path / "keys"
        return []

    store = {"mirror_dir": "keys"}
    assert len(faults(key_store=store)) == 1
    assert len(faults(key_store=store, redis="redis://127.0.0.1:9", key_api=section)) == 1
    assert faults(key_store=store, redis="redis://127.0.0.1:9", key_api=section | {"keys_dir": "keys"}) == []
