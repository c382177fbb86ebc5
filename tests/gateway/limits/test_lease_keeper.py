"""Gateways that share limits by a real Redis: what all of them grant, with it, when it is lost, and when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.limits import accounts as quotas_module
from gateway.limits.accounts import QuotaEnforcer, RequestMeter
from gateway.limits.lease_keeper import QuotaLeaseClient
from gateway.limits.rate_limit_response import QuotaExceeded
from gateway.limits.redis_coordinator import RedisQuotaCoordinator
from gateway.runtime.redis_location import parse_redis_url
from routing.decision.router import Router
from routing.request import Api, Request, Usage
from scorers.registry import routings
from tenancy.limits.usage import LimitKind
from tenancy.tenants import Quota
from tests.gateway.kv_index.exchange import until
from tests.gateway.kv_index.redis_servers import Server, redis_server
from tests.gateway.limits.making import PRICES, Hand, caller_of, quotas_of

SIZE = 50
"""Tokens of a request."""


@dataclass
class Replica:
    """One gateway, as far as limits are concerned. Its beats come when they are told to."""

    quotas: QuotaEnforcer
    leases: QuotaLeaseClient
    lender: RedisQuotaCoordinator
    tabs: list[RequestMeter] = field(default_factory=list)

    @property
    def granted(self) -> int:
        return len(self.tabs)

    async def asks(self, quota: Quota, times: int = 1) -> None:
        """So many requests at once."""
        caller = caller_of(quota)

        async def one() -> None:
            request = Request("r", Api.CHAT, "tiny", stream=True)
            try:
                self.tabs.append(await self.quotas.reserve(request, caller))
            except QuotaExceeded:
                return

        await asyncio.gather(*(one() for _ in range(times)))

    def used(self, kind: LimitKind) -> float:
        book = self.quotas.accounts.find("search")
        return book.limit_usages[kind].counter.used if book is not None else 0.0


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has waited too long for leave goes by what its gateway may use alone: then a limit is kept less exactly."""
    monkeypatch.setattr(quotas_module, "WAIT_S", 60.0)


@asynccontextmanager
async def replica(redis: Server, clock: Hand, name: str) -> AsyncIterator[Replica]:
    log_event: Any = lambda *_, **__: None  # noqa: E731
    lender = RedisQuotaCoordinator(parse_redis_url(redis.url), log_event=log_event, draw=lambda: 0.0, answer_s=20.0)
    quotas = quotas_of(Router(routings()["round-robin"]), clock, expected=float(SIZE), prices=PRICES)
    leases = quotas.leases = QuotaLeaseClient(
        lender,
        holder=name,
        processes=1,
        accounts=quotas.accounts,
        clock=clock,
        log_event=log_event,
    )
    task = asyncio.create_task(lender.run())
    try:
        yield Replica(quotas, leases, lender)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def replicas(redis: Server, clock: Hand, count: int = 4) -> AsyncIterator[list[Replica]]:
    """All connected, and each knowing of the others."""
    async with AsyncExitStack() as stack:
        made = [replica(redis, clock, f"r{n}") for n in range(count)]
        every = [await stack.enter_async_context(each) for each in made]
        await until(lambda: all(each.lender.is_connected for each in every))
        for _ in range(2):
            await beat(every, clock)
        assert [each.leases.replicas for each in every] == [count] * count
        yield every


async def beat(every: Sequence[Replica], clock: Hand, *, seconds: float = 1.0) -> None:
    clock.now_s += seconds
    for each in every:
        await each.leases._renew_leases()


async def all_ask(every: Sequence[Replica], quota: Quota, times: int) -> int:
    """How many requests are granted in all, so far."""
    await asyncio.gather(*(each.asks(quota, times) for each in every))
    return sum(each.granted for each in every)


async def test_four_gateways_together_keep_to_the_limit(tmp_path: Path) -> None:
    """Two hundred streams at once, over all four: exactly what the limit has room for, and again a minute later."""
    quota, clock = Quota(tokens_per_min=100 * SIZE), Hand()
    async with redis_server(tmp_path) as redis, replicas(redis, clock) as every:
        for _ in range(6):
            assert await all_ask(every, quota, 50) <= 100
            await beat(every, clock)
        assert sum(each.granted for each in every) > 95
        for each in every:
            for tab in each.tabs:
                tab.settle(Usage(0, SIZE), "tiny")
                tab.close(was_carried=True, was_served=True)
        clock.now_s += 61
        for _ in range(6):
            await beat(every, clock)
            assert await all_ask(every, quota, 50) <= 200
        assert sum(each.granted for each in every) > 195


async def test_one_gateway_gets_all_of_a_limit_that_others_do_not_use(tmp_path: Path) -> None:
    """A tenant whose connections all land on one gateway is not strangled; asks are few beside requests."""
    quota, clock = Quota(requests_per_min=1000), Hand()
    async with redis_server(tmp_path) as redis, replicas(redis, clock) as every:
        for _ in range(8):
            await every[0].asks(quota, 150)
            await beat(every, clock)
        assert every[0].granted == 1000
        assert every[0].leases.lease_requests < 100


async def test_who_comes_later_gets_a_fair_part(tmp_path: Path) -> None:
    """A gateway that uses all of a limit gives way as its minute passes; the other is not kept waiting for good."""
    quota, clock = Quota(requests_per_min=60), Hand()
    async with redis_server(tmp_path) as redis, replicas(redis, clock, 2) as (first, second):
        for _ in range(60):
            await first.asks(quota, 2)
            await beat([first, second], clock)
        assert first.granted == 60
        for _ in range(90):
            await first.asks(quota, 3)
            await second.asks(quota, 3)
            await beat([first, second], clock)
        assert second.granted > 25


async def test_requests_at_a_time_are_shared_and_come_free(tmp_path: Path) -> None:
    """Ten over four gateways; what ends on one may begin on another."""
    quota, clock = Quota(parallel_requests=10), Hand()
    async with redis_server(tmp_path) as redis, replicas(redis, clock) as every:
        for _ in range(4):
            assert await all_ask(every, quota, 10) <= 10
            await beat(every, clock)
        assert sum(each.granted for each in every) == 10
        for each in every:
            for tab in each.tabs:
                tab.close(was_carried=True, was_served=True)
            each.tabs.clear()
        for _ in range(3):
            await beat(every, clock)
            await every[3].asks(quota, 20)
        assert every[3].granted == 10


@pytest.mark.parametrize("limit", [100, 6])
async def test_losing_redis_keeps_the_bound(tmp_path: Path, limit: int) -> None:
    """Killed in mid-run: all together grant at most a float or one request each beyond the limit, and go on routing."""
    quota, clock = Quota(tokens_per_min=limit * SIZE), Hand()
    bound = limit + 4 * max(limit / 32, 1)
    async with redis_server(tmp_path) as redis, replicas(redis, clock) as every:
        await every[0].asks(quota, limit // 2)
        await every[1].asks(quota, limit // 4)
        await beat(every, clock)
        before = sum(each.granted for each in every)
        await redis.kill()
        for _ in range(50):
            assert await all_ask(every, quota, 20) <= bound
            await beat(every, clock)
        assert all(each.leases.is_partitioned for each in every)
        assert every[3].granted >= 1
        assert sum(each.granted for each in every) > before
        clock.now_s += 120
        await beat(every, clock)
        for each in every:
            each.tabs.clear()
        assert limit * 0.6 < await all_ask(every, quota, limit) <= max(limit, 4)


async def test_a_redis_that_comes_back_empty_is_sent_what_was(tmp_path: Path) -> None:
    """Until all four have said what they hold, nobody takes more than an even share; then it is as before."""
    quota, clock = Quota(tokens_per_min=100 * SIZE), Hand()
    async with redis_server(tmp_path) as redis, replicas(redis, clock) as every:
        await every[0].asks(quota, 60)
        await beat(every, clock)
        await redis.kill()
        await redis.start()
        await until(lambda: all(each.lender.is_connected for each in every))
        await beat(every[1:2], clock)
        await every[1].asks(quota, 100)
        assert every[1].granted <= 25
        for _ in range(5):
            await beat(every, clock)
            assert await all_ask(every, quota, 30) <= 112
        assert sum(each.granted for each in every) >= 95
        assert not any(each.leases.is_partitioned for each in every)


async def test_a_redis_that_is_emptied_under_way_is_filled_again(tmp_path: Path) -> None:
    """Found out at the next beat; what one or the other has taken before that is a step of its slice."""
    quota, clock = Quota(tokens_per_min=100 * SIZE), Hand()
    async with redis_server(tmp_path) as redis, replicas(redis, clock) as every:
        await all_ask(every[:3], quota, 30)
        await beat(every, clock)
        await redis.log_event("FLUSHALL")
        for _ in range(10):
            await beat(every, clock)
            assert await all_ask(every, quota, 30) <= 112
        assert sum(each.granted for each in every) >= 95


async def test_a_limit_that_a_reload_brings_is_shared_at_once(tmp_path: Path) -> None:
    """An account that is in use gets another limit: nobody takes that to be all his own."""
    clock = Hand()
    async with redis_server(tmp_path) as redis, replicas(redis, clock) as every:
        assert await all_ask(every, Quota(budget=1e9), 2) == 8
        await beat(every, clock)
        assert await all_ask(every, Quota(budget=1e9, tokens_per_min=40 * SIZE), 40) <= 8 + 40


async def spends(redis: Server, clock: Hand, name: str, quota: Quota, times: int, *, says_farewell: bool) -> int:
    """The life of a gateway: how many requests of so many it has granted."""
    async with replica(redis, clock, name) as living:
        await until(lambda: living.lender.is_connected)
        for _ in range(8):
            await beat([living], clock)
            await living.asks(quota, times - living.granted)
        if says_farewell:
            await living.leases._release_all()
        return living.granted


async def test_a_budget_outlives_the_gateway(tmp_path: Path) -> None:
    """What was spent stays spent; after an orderly end nothing but that."""
    quota, clock = Quota(budget=100.0 * SIZE), Hand()
    async with redis_server(tmp_path) as redis:
        assert await spends(redis, clock, "old", quota, 40, says_farewell=True) == 40
        assert await spends(redis, clock, "new", quota, 100, says_farewell=True) == 60
        clock.now_s += 86_400
        assert await spends(redis, clock, "tomorrow", quota, 100, says_farewell=True) == 100


async def test_after_a_crash_what_was_lent_counts_as_spent(tmp_path: Path) -> None:
    """Nobody can tell how much of it was: the limit holds, and a step of it is lost until the period ends."""
    quota, clock = Quota(budget=100.0 * SIZE), Hand()
    async with redis_server(tmp_path) as redis:
        assert await spends(redis, clock, "crashing", quota, 20, says_farewell=False) == 20
        assert 60 <= await spends(redis, clock, "new", quota, 100, says_farewell=True) <= 80


async def test_a_hanging_redis_delays_no_request(tmp_path: Path) -> None:
    """The first to ask find out, within half a second; after that nobody waits."""
    quota, clock = Quota(tokens_per_min=1000 * SIZE), Hand()
    async with redis_server(tmp_path) as redis, replicas(redis, clock) as every:
        for each in every:
            each.lender._answer_s = 0.5
        await redis.hang()
        async with asyncio.timeout(120):
            assert await all_ask(every, quota, 10) >= 4
        assert all(each.leases.is_partitioned for each in every)
        await redis.wake()
        async with asyncio.timeout(120):
            # A beat that takes more than half a second, for whatever reason, parts them again.
            while any(each.leases.is_partitioned for each in every):
                await until(lambda: all(each.lender.is_connected for each in every))
                await beat(every, clock)
