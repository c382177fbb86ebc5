"""Actors of the key API: identified by a token or a client certificate, with one role each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.config.key_api import ActorRole, ClientRole, OidcConfig
from gateway.identity.tokens import Claims, KeySet, UnknownSigningKey, claim_values, verify_token
from routing.rejection import RequestRejected

MAX_NAME_CHARS = 256

ROLES = frozenset(ActorRole)


class UnknownActor(Exception):  # noqa: N818 - an answer for the caller
    """A request that identifies no actor with a role. The message holds nothing of the credential."""


class IssuerUnavailable(Exception):  # noqa: N818 - an answer for the caller
    """The signing keys of the token issuer are not known yet."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A person or program that uses the key API."""

    name: str
    """Subject of its token, or name of its certificate."""
    role: ActorRole
    tenant: str | None = None
    """The one tenant of a tenant-admin."""

    @property
    def may_write(self) -> bool:
        """Whether it may change the keys of the tenants that it sees."""
        return self.role is not ActorRole.VIEWER

    def sees(self, tenant: str) -> bool:
        """Return whether keys of a tenant are shown to it."""
        return self.role is not ActorRole.TENANT_ADMIN or tenant == self.tenant


def actor_of_token(
    token: str, oidc: OidcConfig, keys: KeySet | None, now_s: float, request_refresh: Callable[[], bool]
) -> Actor:
    """Return the actor that a token names. Raises `UnknownActor` and `IssuerUnavailable`."""
    if keys is None:
        raise IssuerUnavailable
    try:
        claims = verify_token(token, oidc.rules, keys, now_s)
    except UnknownSigningKey:
        if request_refresh():
            raise IssuerUnavailable from None
        raise UnknownActor("The token is signed with an unknown key.") from None
    except RequestRejected as rejection:
        raise UnknownActor(rejection.message) from None
    return _actor_of_claims(claims, oidc)


def _actor_of_claims(claims: Claims, oidc: OidcConfig) -> Actor:
    """Return the actor of verified claims: exactly one role of ours, and one tenant where the role needs it."""
    roles = {role for role in claim_values(claims, oidc.role_claim) if role in ROLES}
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_NAME_CHARS:
        raise UnknownActor("The token has no subject.")
    if len(roles) != 1:
        raise UnknownActor(
            f"The token's claim `{oidc.role_claim}` must name exactly one of {', '.join(sorted(ROLES))}."
        )
    role = ActorRole(roles.pop())
    if role is not ActorRole.TENANT_ADMIN:
        return Actor(subject, role)
    tenants = set(claim_values(claims, oidc.tenant_claim))
    if len(tenants) != 1:
        raise UnknownActor(f"The token's claim `{oidc.tenant_claim}` must name exactly one tenant.")
    return Actor(subject, role, tenants.pop())


def actor_of_certificate(certificate: Mapping[str, Any], clients: Iterable[ClientRole]) -> Actor:
    """Return the actor of a verified client certificate (`SSLSocket.getpeercert`). Raises `UnknownActor`.

    Its names are those of the extension, and the common name only without the extension.
    """
    names = set(_names(certificate))
    found = [client for client in clients if client.name in names]
    if len(found) != 1:
        raise UnknownActor("The client certificate has no role, or more than one.")
    return Actor(found[0].name, found[0].role, found[0].tenant)


def _names(certificate: Mapping[str, Any]) -> Iterator[str]:
    alternatives = certificate.get("subjectAltName", ())
    if alternatives:
        yield from (value for _, value in alternatives if isinstance(value, str))
        return
    for part in certificate.get("subject", ()):
        for kind, value in part:
            if kind == "commonName":
                yield value
