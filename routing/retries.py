"""The retry budget: one account for retries, failovers and resumes.

Every request adds a share of an attempt; every further attempt takes one. So whatever fails, engines are not loaded
much beyond what clients send, and retries never become an overload of their own. Independent of pods and clocks.

Whether an attempt adds to the engines' load depends on what became of the first. A request that moves from an engine
that is gone takes up the room that it had there: that may overdraw the budget by the number of requests in flight, and
a stream of which the client has received the beginning is rejected last.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from math import inf

TENANT_SHARE = 0.5
"""Share of the balance that retries of one tenant may use up, beyond what its own requests pay in."""

FIRST = "first"
"""Kind of a request's first attempt."""

ESCALATION = "escalation"
"""Kind of the first attempt at a further model of a cascade. The budget is not concerned."""


class RetryKind(StrEnum):
    """What a further attempt is for, in the order in which a spent budget rejects them."""

    RETRY = "retry"
    """A live pod failed, was busy or could not be reached."""
    FAILOVER = "failover"
    """The engine is gone before the client received any of the answer."""
    RESUME = "resume"
    """The engine is gone in the middle of a response, which another engine resumes."""


@dataclass(frozen=True, slots=True)
class RetryTerms:
    """Attempts of one request, and the budget of all."""

    max_attempts: int = 3
    """Pods that may fail one request before its first byte: the request itself may be what breaks them."""
    max_resumes: int = 8
    """How often one stream is resumed elsewhere."""
    budget_ratio: float = 0.2
    """Second attempts for each request, in the long run."""
    budget_burst: int = 100
    """As many may come at once, after a time without any."""

    def may_retry(self, failed: int, attempts: int) -> bool:
        """Whether a request may be sent to one more pod. `failed`: those that failed it and had failed no other request
        before; `attempts`: all that have seen it, of which there is an end as well.
        """
        return failed < self.max_attempts and attempts < self.max_attempts**2


class RetryBudget:
    """One per gateway."""

    def __init__(self, terms: RetryTerms | None = None, *, among: int = 1) -> None:
        """`among`: the number of processes that share the budget; a share of each one's requests is a share of all."""
        terms = terms or RetryTerms()
        self._share = terms.budget_ratio
        self._max_balance = terms.budget_burst / among
        self.balance = self._max_balance
        self._of_tenants: dict[str, float] = {}
        """What tenants may still take out for retries, where that is less than `TENANT_SHARE` of the whole."""
        self.in_flight = 0
        self.taken: Counter[RetryKind] = Counter()
        self.rejected: Counter[RetryKind] = Counter()

    def __repr__(self) -> str:
        return f"<RetryBudget of {self.balance:.1f} retries, {self.in_flight} requests in flight>"

    def begin(self, tenant: str | None = None) -> None:
        """A request of a tenant has come, and pays in."""
        self.in_flight += 1
        self.balance = min(self._max_balance, self.balance + self._share)
        if tenant in self._of_tenants:
            self._set_left(tenant, self._of_tenants[tenant] + self._share)

    def end(self) -> None:
        """It has ended, however it did."""
        self.in_flight -= 1

    def take(self, what: RetryKind, tenant: str | None = None) -> bool:
        """Take an attempt out, if there is one for this. Retries of one tenant leave part of the balance to others."""
        left = inf
        if tenant is not None and what is RetryKind.RETRY:
            left = self._of_tenants.get(tenant, self._max_of_tenant) - 1
        may = self.balance - 1 >= self._min_balance(what) and left >= 0
        (self.taken if may else self.rejected)[what] += 1
        if may:
            self.balance -= 1
            if tenant is not None and left < inf:
                self._set_left(tenant, left)
        return may

    @property
    def _max_of_tenant(self) -> float:
        return max(1.0, TENANT_SHARE * self._max_balance)

    def _set_left(self, tenant: str, left: float) -> None:
        if left < self._max_of_tenant:
            self._of_tenants[tenant] = left
        else:
            del self._of_tenants[tenant]

    def _min_balance(self, what: RetryKind) -> float:
        """What must be left after it."""
        match what:
            case RetryKind.RETRY:
                return 0.0
            case RetryKind.FAILOVER:
                return -float(self.in_flight)
            case RetryKind.RESUME:
                return -2.0 * self.in_flight
