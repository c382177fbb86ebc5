"""A policy tried on requests that were: how many of each tenant would have been refused, and why.

Limits are those of `tenancy/limits/`, on the time of the requests. Whoever would have been told to come back does not:
what a client that is refused does next is not in any record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from tenancy.limits.book import Books
from tenancy.limits.reservation import Reservation, reserve
from tenancy.limits.use import FREE, Rates, Use
from tenancy.policy import Policy
from tenancy.quota import Account
from tenancy.tenants import Tenant

NO_TENANT, NO_MODEL = "unknown tenant", "model_not_allowed"


@dataclass(frozen=True, slots=True)
class Past:
    """A request that was. Times are Unix time."""

    at_s: float
    tenant: str | None
    model: str
    user: str | None = None
    group: str | None = None
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    duration_s: float = 0.0


@dataclass(slots=True)
class Fate:
    """What became of one tenant's requests."""

    requests: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """By reason."""


def try_on(policy: Policy, requests: Iterable[Past], rates: Callable[[str], Rates] = lambda _: FREE) -> dict[str, Fate]:
    """By tenant, in the order in which they came. `requests` in order of time; `rates` are those of a model."""
    fates: dict[str, Fate] = {}
    books, running, turns = Books(), list[tuple[float, int, Reservation]](), count()
    for past in requests:
        while running and running[0][0] <= past.at_s:
            ended_s, _, reservation = heappop(running)
            reservation.close(ended_s)
        fate = fates.setdefault(past.tenant or "", Fate())
        fate.requests += 1
        tenant = policy.tenants.get(past.tenant or "")
        model = tenant.aliases.get(past.model, past.model) if tenant is not None else past.model
        if tenant is None or not tenant.may_use(model):
            fate.refused[NO_TENANT if tenant is None else NO_MODEL] += 1
            continue
        found = reserve(books.of(_accounts(tenant, past), past.at_s), _use(past, rates(model)), past.at_s)
        if isinstance(found, tuple):
            fate.refused[" and ".join(sorted({lack.kind.value for lack in found}))] += 1
        else:
            heappush(running, (past.at_s + past.duration_s, next(turns), found))
    return fates


def _accounts(tenant: Tenant, past: Past) -> tuple[Account, ...]:
    return tenant.caller(group=past.group, user=past.user).accounts


def _use(past: Past, rates: Rates) -> Use:
    return Use(
        input_tokens=past.input_tokens,
        cached_tokens=past.cached_tokens,
        output_tokens=past.output_tokens,
        rates=rates,
    )
