"""The policy as values: keys, tenants, tiers, and which tokens and headers are trusted.

Reads nothing: `tenancy/reading/` makes these of a file. Plain dicts, as a policy is sent to other processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from tenancy.objective import Tier
from tenancy.tenants import Caller, Tenant

HMAC = "hmac-sha256:"
"""Stands before a digest that was made with the secret; one without is a plain sha256."""

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Of tokens. All are asymmetric: a party that can verify a token cannot make one."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The caller that one API key identifies."""

    caller: Caller
    expires_s: float = inf
    """Unix time at which it ends."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Which JWTs are trusted, and which claims are read from them."""

    issuer: str
    audiences: tuple[str, ...]
    tenant_claim: str | None = None
    user_claim: str = "sub"
    group_claim: str | None = None
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    leeway_s: float = 30.0
    """How far clocks may differ."""
    jwks_url: str | None = None
    """Where the issuer's keys are; without it and `jwks` its discovery document says so."""
    jwks: str | None = None
    """The keys themselves, as JWKS or PEM."""
    default_tenant: str | None = None
    """Of tokens that name no tenant of ours; without it they are rejected."""


@dataclass(frozen=True, slots=True)
class HeaderRules:
    """Names of the request headers by which a trusted proxy identifies the caller: the first that is present counts.

    Tenant and group only where the policy names a header: the proxy that sets them has to strip them from what clients
    send.
    """

    tenant: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    user: tuple[str, ...] = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id", "x-hearth-user")
    objective: tuple[str, ...] = (
        *("x-llm-d-inference-objective", "x-gateway-inference-objective"),
        "x-hearth-objective",
    )
    """Names the tier."""
    priority: tuple[str, ...] = ("x-hearth-priority",)
    """The highest tier of at most this priority."""

    @property
    def names(self) -> tuple[str, ...]:
        """All that are believed."""
        return (*self.tenant, *self.group, *self.user, *self.objective, *self.priority)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the file says. `keys`: by digest in lower-case hexadecimal, with `HMAC` before it where a secret made it."""

    keys: Mapping[str, ApiKey] = field(repr=False)
    tenants: Mapping[str, Tenant]
    tiers: Mapping[str, Tier] = field(default_factory=dict)
    default: Caller | None = None
    """The caller without a key; None: such requests are rejected."""
    hmac_secret: str | None = field(default=None, repr=False)
    jwt: TokenRules | None = None
    headers: HeaderRules = field(default_factory=HeaderRules)
    files: tuple[str, ...] = ()
    """Files and folders that it names."""


@dataclass(frozen=True, slots=True)
class KeyFile:
    """One file of `auth.keys_dir`: `<tenant>/<key id>`."""

    tenant: str
    key_id: str
    content: str = field(repr=False)


class PolicyFiles(Protocol):
    """Finds what a policy names. Each raises `InvalidValue` where it is not there."""

    def key_files(self, folder: str) -> Iterable[KeyFile]:
        """The files of a folder of keys."""
        ...

    def text(self, path: str) -> str:
        """Return the content of one file."""
        ...


class InlineFiles:
    """A shelf with nothing on it but the key files it was given."""

    def __init__(self, *files: KeyFile) -> None:
        self._files = files

    def key_files(self, folder: str) -> Iterator[KeyFile]:
        yield from self._files

    def text(self, path: str) -> str:
        return ""
