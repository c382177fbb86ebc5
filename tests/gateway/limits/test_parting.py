"""A gateway and its lender part while several asks are under way: in virtual time, in the order that does harm."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from gateway.limits.accounts import QuotaEnforcer
from gateway.limits.coordinator import CoordinatorUnavailable
from gateway.limits.lease_keeper import QuotaLeaseClient
from routing.decision.router import Router
from routing.request import Api, Request
from scorers.registry import routings
from simulator.clock import run_virtually
from tenancy.limits.leases import AccountLeases, LeaseGrant, LeaseRequest
from tenancy.limits.shared_limits import partitioned_cap
from tenancy.limits.usage import LimitKind
from tenancy.tenants import Quota
from tests.gateway.limits.making import caller_of, quotas_of

LATE_S, LOST_S = 0.2, 0.1


class FailingLender:
    """Lends from memory until it breaks: then what was asked of `late` is still granted, all else is lost."""

    def __init__(self) -> None:
        self.slices: dict[str, AccountLeases] = defaultdict(AccountLeases)
        self.late = ""
        self.is_breaking = False
        self.late_s = LATE_S

    @property
    def is_connected(self) -> bool:
        return True

    async def lease(self, path: str, holder: str, asks: Sequence[LeaseRequest]) -> list[LeaseGrant]:
        if self.is_breaking:
            await asyncio.sleep(self.late_s if path == self.late else LOST_S)
            if path != self.late:
                raise CoordinatorUnavailable
        return self.slices[path].grant(holder, asks, asyncio.get_running_loop().time())

    async def release(self, path: str, holder: str, asks: Sequence[LeaseRequest]) -> None:
        raise CoordinatorUnavailable

    async def run(self) -> None:
        await asyncio.Event().wait()


def a_gateway(lender: FailingLender) -> tuple[QuotaEnforcer, QuotaLeaseClient]:
    clock: Any = asyncio.get_running_loop().time
    log_event: Any = lambda *_, **__: None  # noqa: E731
    quotas = quotas_of(Router(routings()["round-robin"]), clock)
    leases = quotas.leases = QuotaLeaseClient(
        lender, holder="r0", processes=1, accounts=quotas.accounts, clock=clock, log_event=log_event
    )
    return quotas, leases


async def uses(quotas: QuotaEnforcer, name: str, quota: Quota) -> None:
    await quotas.reserve(Request("r", Api.CHAT, "tiny", stream=True), caller_of(quota, name))


async def a_grant_comes_after_the_parting() -> None:
    await asyncio.sleep(100)  # clocks do not begin at nought
    lender, quota = FailingLender(), Quota(requests_per_min=800)
    quotas, leases = a_gateway(lender)
    await leases._renew_leases()
    await uses(quotas, "late", quota)
    await uses(quotas, "lost", quota)
    lender.late, lender.is_breaking = "late", True
    books = {name: quotas.accounts.find(name) for name in ("late", "lost")}
    await asyncio.gather(*(leases._lease_once(book, {}) for book in books.values() if book is not None))
    assert leases.is_partitioned
    for book in books.values():
        assert book is not None
        meter = book.limit_usages[LimitKind.REQUESTS]
        assert meter.cap == partitioned_cap(meter, leases.replicas, leases._unanswered_s)
    for _ in range(100):
        await uses(quotas, "late", quota)


def test_a_grant_that_comes_late_takes_nothing_from_who_stands_alone() -> None:
    """Two asks were under way: one is lost, the other answered after it. Both accounts keep their float."""
    run_virtually(a_grant_comes_after_the_parting())


async def an_ask_begins_after_the_parting() -> None:
    await asyncio.sleep(100)  # clocks do not begin at nought
    lender, quota = FailingLender(), Quota(requests_per_min=800)
    quotas, leases = a_gateway(lender)
    await leases._renew_leases()
    await uses(quotas, "late", quota)
    book = quotas.accounts.find("late")
    assert book is not None
    requested, asking = leases.lease_requests, asyncio.create_task(leases._lease_once(book, {}))
    leases.mark_partitioned()
    cap = book.limit_usages[LimitKind.REQUESTS].cap
    await asking
    assert (book.limit_usages[LimitKind.REQUESTS].cap, leases.lease_requests) == (cap, requested)


def test_who_stands_alone_calls_no_one() -> None:
    """An ask that was decided on before the parting gives nothing up, and is not made."""
    run_virtually(an_ask_begins_after_the_parting())


async def a_request_has_waited_too_long() -> None:
    await asyncio.sleep(100)
    lender, quota = FailingLender(), Quota(requests_per_min=800)
    quotas, leases = a_gateway(lender)
    await leases._renew_leases()
    lender.late, lender.is_breaking, lender.late_s = "search", True, 3600.0
    await uses(quotas, "search", quota)
    assert leases.is_partitioned


def test_a_coordinator_that_says_nothing_is_no_limit_that_is_used_up() -> None:
    """Whoever has waited as long as a request may is served by what its gateway may use alone."""
    run_virtually(a_request_has_waited_too_long())
