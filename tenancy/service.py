"""Who of a tier has had how much: virtual token counters with weights, as VTC (Sheng et al., OSDI '24) counts service.

A tenant's counter is what it was served over its weight; who has least goes first. Who was away starts at the least
counter of those who are here, so that nobody saves up service by not asking. Charged as expected, settled with what it
was, refunded where nothing came of it.
"""

from __future__ import annotations

INPUT_PRICE, OUTPUT_PRICE = 1.0, 2.0
"""What a cold token and a generated one count, as in VTC."""


def price(cold_tokens: float, output_tokens: float) -> float:
    """Service in weighted tokens."""
    return INPUT_PRICE * cold_tokens + OUTPUT_PRICE * output_tokens


class Service:
    """The counters of one tier's tenants. Bounded by those who have something open."""

    def __init__(self) -> None:
        self._counters: dict[str | None, float] = {}
        self._open: dict[str | None, int] = {}
        self._level = 0.0
        """The least counter of those who were here when anybody last was."""

    def of(self, tenant: str | None) -> float:
        """What it has had, over its weight."""
        return self._counters.get(tenant, self._level)

    def least_but(self, tenant: str | None) -> float | None:
        """The least counter of the others that are here; None where there are none."""
        return min((self._counters[other] for other in self._open if other != tenant), default=None)

    def enter(self, tenant: str | None) -> None:
        """One more request of a tenant waits or runs."""
        count = self._open.get(tenant, 0)
        if count == 0:
            self._level = min((self._counters[other] for other in self._open), default=self._level)
            self._counters[tenant] = max(self._counters.get(tenant, 0.0), self._level)
        self._open[tenant] = count + 1

    def leave(self, tenant: str | None) -> None:
        """One less. Who has nothing left is forgotten, unless it has had more than others: leaving mends nothing."""
        count = self._open[tenant] - 1
        if count:
            self._open[tenant] = count
            return
        del self._open[tenant]
        if not self._open:
            self._level = max(self._level, self._counters[tenant])
            self._counters.clear()
            return
        self._level = min(self._counters[other] for other in self._open)
        self._counters = {who: had for who, had in self._counters.items() if who in self._open or had > self._level}

    def serve(self, tenant: str | None, tokens: float, weight: float) -> None:
        """So much more was given to a tenant, or less than was expected."""
        if tenant in self._counters:
            self._counters[tenant] += tokens / weight
