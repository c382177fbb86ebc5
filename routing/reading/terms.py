"""What a body is read under: what things may be called, how much may be wanted, what keeps it apart from others.

A tenant is such terms; reading knows no more of tenants than this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Protocol

from msgspec.json import encode

from routing.reading.bodies import Body


class Terms(Protocol):
    """Of one who asks."""

    @property
    def name(self) -> str | None:
        """Whose sessions and stored responses they are; None where nobody is told apart."""
        ...

    @property
    def aliases(self) -> Mapping[str, str]:
        """What is called otherwise there, to what it is called here."""
        ...

    @property
    def output_cap(self) -> int | None:
        """Most tokens of one answer."""
        ...

    @property
    def trust_domain(self) -> str | None:
        """Whose warm prefixes it may share, None for everybody's."""
        ...

    @property
    def regions(self) -> frozenset[str] | None:
        """Where it may be computed, None for anywhere."""
        ...


@dataclass(frozen=True, slots=True)
class PlainTerms:
    """Everything goes, and nothing is kept apart."""

    name: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    output_cap: int | None = None
    trust_domain: str | None = None
    regions: frozenset[str] | None = None


PLAIN = PlainTerms()


def changes_of(body: Body, model: str, terms: Terms) -> dict[str, bytes]:
    """The fields of a body that must say something else for its terms to hold, in JSON."""
    changes: dict[str, bytes] = {}
    if model != body.model:
        changes["model"] = encode(model)
    cap, salt = terms.output_cap, terms.trust_domain
    if cap is not None:
        changes.update(dict.fromkeys(body.over(cap), b"%d" % cap))
    if salt and body.makes_kv:
        changes["cache_salt"] = encode(salt_of(salt))
    return changes


@lru_cache(maxsize=1024)
def salt_of(domain: str) -> str:
    r"""Return the `cache_salt` that engines receive for a trust domain: 71 characters of letters, digits and `-`.

    vLLM rejects salts of more than 128 characters and those with `@`, `/`, `\` or NUL, all of which a tenant's name
    may have. The digest is not keyed: every gateway of a fleet must make the same salt, and clients cannot set one.
    """
    return f"hearth-{sha256(domain.encode('utf-8', 'surrogatepass')).hexdigest()}"


def owned(name: str, owner: str | None) -> str:
    """A name that clients choose or guess, apart from what other tenants call the same."""
    return name if owner is None else f"{owner}/{name}"
