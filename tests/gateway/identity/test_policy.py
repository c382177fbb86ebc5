"""A policy is checked against all that it leans on before it is in force."""

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from gateway.config.models import ModelEntry
from gateway.config.settings import Settings
from gateway.identity import policy as load
from gateway.identity.policy import load_policy
from tenancy.document import InvalidDocument
from tests.gateway.identity.test_tokens import ALL

PRICED = (ModelEntry("small", 1e-6, 2e-6), ModelEntry("free", 0.0, 0.0), ModelEntry("half", 1e-6))


def faults(folder: Path, source: str) -> list[str]:
    path = folder / "policy.yaml"
    path.write_text(source)
    with pytest.raises(InvalidDocument) as rejected:
        load_policy(Settings(policy=path, models=PRICED), {})
    return [str(fault).removeprefix(f"{path}: ") for fault in rejected.value.errors]


def test_without_a_policy_there_is_none() -> None:
    """Everybody may come in."""
    assert load_policy(Settings(), {}) is None


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ("models: [big], max_budget: 5", ["tenants.a.max_budget: `big` has no price in the model_list"]),
        ("models: [half, small], max_budget: 5", ["tenants.a.max_budget: `half` has no price in the model_list"]),
        ("models: [big], per_user: {max_budget: 5}", ["tenants.a.max_budget: `big` has no price"]),
        ("models: [big], groups: {x: {max_budget: 5}}", ["tenants.a.max_budget: `big` has no price"]),
        ("max_budget: 5", ["tenants.a.models: is missing: a budget needs to know which models it pays for"]),
    ],
)
def test_a_budget_that_binds_nothing_is_rejected(tmp_path: Path, words: str, reported: list[str]) -> None:
    """Whosever it is."""
    found = faults(tmp_path, f"auth: {{default_tenant: a}}\ntenants: {{a: {{{words}}}}}")
    assert len(found) == len(reported)
    assert all(one.startswith(other) for one, other in zip(found, reported, strict=True))


def test_what_costs_nothing_has_a_price(tmp_path: Path) -> None:
    """Zero is one; who has no budget needs none."""
    path = tmp_path / "policy.yaml"
    path.write_text(
        "auth: {default_tenant: a}\ntenants: {a: {models: [free, small], max_budget: 5}, b: {models: [big]}}"
    )
    assert load_policy(Settings(policy=path, models=PRICED), {}) is not None


JWT = "auth: {{jwt: {{issuer: 'https://sso.example', audiences: [h], default_tenant: a, {}}}}}\ntenants: {{a: {{}}}}"


def test_tokens_need_their_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said at the start, with what to install."""

    def find(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(load, "find_spec", find)
    assert faults(tmp_path, JWT.format("")) == ["auth.jwt: needs a library: pip install 'hearth-gateway[jwt]'"]


def test_keys_of_a_file_are_checked(tmp_path: Path) -> None:
    """Whether they are there, and keys."""
    (tmp_path / "keys").write_text("{}")
    assert faults(tmp_path, JWT.format(f"jwks_file: {tmp_path}/keys")) == [
        "auth.jwt.jwks_file: is not a JSON Web Key Set"
    ]
    assert "cannot read" in faults(tmp_path, JWT.format(f"jwks_file: {tmp_path}/nowhere"))[0]
    (tmp_path / "keys").write_text(ALL)
    path = tmp_path / "policy.yaml"
    path.write_text(JWT.format(f"jwks_file: {tmp_path}/keys"))
    found = load_policy(Settings(policy=path), {})
    assert found is not None
    assert found.files == (f"{tmp_path}/keys",)


def test_a_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    """Its last newline is none of it; what is wrong with it is said without it."""
    (tmp_path / "secret").write_text("0123456789abcdef\n")
    path = tmp_path / "policy.yaml"
    path.write_text(f"auth: {{default_tenant: a, hmac_secret_file: {tmp_path}/secret}}")
    found = load_policy(Settings(policy=path), {})
    assert found is not None
    assert found.hmac_secret == "0123456789abcdef"
    (tmp_path / "secret").write_text("hunter2\n")
    reported = faults(tmp_path, path.read_text())
    assert reported == ["auth.hmac_secret_file: must have at least 16 characters"]


def test_a_file_that_is_no_text_is_reported(tmp_path: Path) -> None:
    """And one that is gone."""
    path = tmp_path / "policy.yaml"
    with pytest.raises(InvalidDocument, match="cannot be read"):
        load_policy(Settings(policy=path), {})
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidDocument, match="cannot be read"):
        load_policy(Settings(policy=path), {})
