"""Costs of answers of cascades, by tenant and model, and what the same answers would have cost without a cascade.

Sums only. The largest model and the first are priced for the tokens of the answer that was given: their own answers are
unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class CascadeCosts:
    """Money in the currency of the prices; `+` adds them up."""

    requests: int = 0
    escalated: int = 0
    """Requests of which an answer was escalated."""
    cost: float = 0.0
    """All models that were called, without shadows."""
    wasted: float = 0.0
    """Part of it, for answers that no client got."""
    shadows: float = 0.0
    """Beside it, for answers requested for comparison."""
    always_top: float = 0.0
    always_first: float = 0.0

    def __add__(self, other: CascadeCosts) -> CascadeCosts:
        return CascadeCosts(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(CascadeCosts)))

    @property
    def saved(self) -> float:
        """Against always asking the largest model, shadows paid."""
        return self.always_top - self.cost - self.shadows

    @property
    def escalation_share(self) -> float:
        return self.escalated / self.requests if self.requests else 0.0


Key = tuple[str, str, str]
"""Tenant, cascade, and the model that answered."""

OTHER_TENANTS = "other"


class CostAccounts:
    """Sums by tenant, cascade and answering model. More than `max_entries` tenants share one row."""

    def __init__(self, max_entries: int = 1_000) -> None:
        self._max_entries = max_entries
        self._tenants: set[str] = set()
        self._sums: dict[Key, CascadeCosts] = {}

    def add(self, tenant: str, cascade: str, model: str, sums: CascadeCosts) -> None:
        """One request, or a shadow of one."""
        if tenant not in self._tenants and len(self._tenants) >= self._max_entries:
            tenant = OTHER_TENANTS
        self._tenants.add(tenant)
        key = (tenant, cascade, model)
        self._sums[key] = self._sums.get(key, CascadeCosts()) + sums

    def rows(self) -> list[tuple[Key, CascadeCosts]]:
        """All of them, by name."""
        return sorted(self._sums.items(), key=lambda row: row[0])

    def total(self, *, tenant: str | None = None, cascade: str | None = None, model: str | None = None) -> CascadeCosts:
        """The sum of all rows that match what is given."""
        account_key = (tenant, cascade, model)
        return total(
            sums
            for key, sums in self._sums.items()
            if all(want is None or want == have for want, have in zip(account_key, key, strict=True))
        )


def total(sums: Iterable[CascadeCosts]) -> CascadeCosts:
    """Of many."""
    total_costs = CascadeCosts()
    for one in sums:
        total_costs += one
    return total_costs
