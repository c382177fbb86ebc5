"""How much somebody may use, and who shares it. Values; what has been used is kept elsewhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of one account; None where there is none. A limit per minute binds over any sixty seconds."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    """Input and output together."""
    input_tokens_per_min: int | None = None
    output_tokens_per_min: int | None = None
    uncached_tokens_per_min: int | None = None
    """Input that no engine held already."""
    parallel_requests: int | None = None
    budget: float | None = None
    """Money, in the unit of the price table, within `budget_period_s`."""
    budget_period_s: float = 86_400.0
    binds_only_under_load: bool = False
    """Limits per minute bind only while others wait."""

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is ever refused for it."""
        return self == UNLIMITED


UNLIMITED = Quota()


@dataclass(frozen=True, slots=True)
class Account:
    """What a quota binds: a tenant, one of its groups or one of its users. `path` is its name: `search/user/ann`."""

    path: str
    quota: Quota
