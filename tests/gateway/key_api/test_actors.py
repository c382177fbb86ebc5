"""Whose word counts: a token's one role and tenant, a certificate's name."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.key_api import ActorRole, ClientRole, OidcConfig
from gateway.identity.tokens import read_keys
from gateway.key_api.actors import Actor, IssuerUnavailable, UnknownActor, actor_of_certificate, actor_of_token
from tests.gateway.identity.test_tokens import ALL, NOW_S, RULES, token

OIDC = OidcConfig(RULES)


def actor(**claims: Any) -> Actor:
    return actor_of_token(token(**claims), OIDC, read_keys(ALL), NOW_S, lambda: False)


def test_a_token_names_one_role() -> None:
    """And, of a tenant-admin, one tenant; roles of others are left out."""
    assert actor(hearth_role="viewer") == Actor("ann", ActorRole.VIEWER)
    assert actor(hearth_role=["staff", "operator"]) == Actor("ann", ActorRole.OPERATOR)
    assert actor(hearth_role="tenant-admin", hearth_tenant="legal") == Actor("ann", ActorRole.TENANT_ADMIN, "legal")
    assert actor(hearth_role="operator", hearth_tenant="legal").tenant is None


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"hearth_role": "admin"},
        {"hearth_role": ["viewer", "operator"]},
        {"hearth_role": {"operator": True}},
        {"hearth_role": "tenant-admin"},
        {"hearth_role": "tenant-admin", "hearth_tenant": ["legal", "search"]},
        {"hearth_role": "operator", "sub": None},
        {"hearth_role": "operator", "sub": "x" * 257},
        {"hearth_role": "operator", "exp": NOW_S - 3600},
        {"hearth_role": "operator", "aud": "another"},
        {"hearth_role": "operator", "iss": "https://other.example"},
    ],
)
def test_a_token_without_exactly_one_role_is_rejected(claims: dict[str, Any]) -> None:
    """Several roles are no role: none is guessed. Nor does an expired or foreign token count."""
    with pytest.raises(UnknownActor):
        actor(**claims)


def test_a_token_waits_for_the_issuers_keys() -> None:
    """Until they are known, and while an unknown key is fetched; after that it is nobody's."""
    given = token(hearth_role="operator", kid="new")
    with pytest.raises(IssuerUnavailable):
        actor_of_token(given, OIDC, None, NOW_S, lambda: False)
    with pytest.raises(IssuerUnavailable):
        actor_of_token(given, OIDC, read_keys(ALL), NOW_S, lambda: True)
    with pytest.raises(UnknownActor):
        actor_of_token(given, OIDC, read_keys(ALL), NOW_S, lambda: False)


CLIENTS = (ClientRole("ci.example", ActorRole.OPERATOR), ClientRole("legal.example", ActorRole.TENANT_ADMIN, "legal"))


def certificate(*names: str, common: str = "nobody") -> dict[str, Any]:
    found: dict[str, Any] = {"subject": ((("commonName", common),),)}
    return found | ({"subjectAltName": tuple(("DNS", each) for each in names)} if names else {})


def test_a_certificate_has_the_role_of_its_name() -> None:
    """Of the extension, where there is one: the common name then says nothing."""
    assert actor_of_certificate(certificate("ci.example"), CLIENTS) == Actor("ci.example", ActorRole.OPERATOR)
    legal = Actor("legal.example", ActorRole.TENANT_ADMIN, "legal")
    assert actor_of_certificate(certificate(common="legal.example"), CLIENTS) == legal
    for shown in (
        certificate("other", common="ci.example"),
        certificate(),
        {},
        certificate("ci.example", "legal.example"),
    ):
        with pytest.raises(UnknownActor):
            actor_of_certificate(shown, CLIENTS)
