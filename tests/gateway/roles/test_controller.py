"""Roles at work: one of two gateways decides and the other follows, by way of a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.roles import lease, redis_lease
from gateway.roles.balancer import RoleAssigner
from gateway.roles.controller import RoleController
from gateway.roles.redis_lease import KEY, RedisRoleLease
from gateway.runtime import redis_link
from gateway.runtime.redis_location import parse_redis_url
from routing.decision.router import Router
from routing.facts import Role
from tests.gateway.kv_index.exchange import until
from tests.gateway.kv_index.redis_servers import redis_server
from tests.gateway.roles.test_balancer import TERMS, roles_of, router_of


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis is waited for, and no lease runs out by itself, however slow this machine is."""
    monkeypatch.setattr(redis_link, "TIMEOUT_S", 60.0)
    for module in (lease, redis_lease):
        monkeypatch.setattr(module, "LEASE_S", 3600.0)


class Gateway:
    """As far as roles are concerned."""

    def __init__(self, url: str, who: str) -> None:
        self.now_s = 0.0
        self.router = router_of(3)
        self.shared = RedisRoleLease(parse_redis_url(url), who, lambda: self.now_s)
        keeper = RoleAssigner(self.router, TERMS)
        self.at_work = RoleController(self.router, keeper, self.shared, lambda *_, **__: None, lambda: self.now_s)


@asynccontextmanager
async def gateways(url: str) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Two that have found Redis."""
    both = Gateway(url, "one"), Gateway(url, "two")
    tasks = [asyncio.create_task(each.shared.run()) for each in both]
    try:
        await until(lambda: all(each.shared.is_connected for each in both))
        yield both
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_one_decides_and_the_other_follows(tmp_path: Path) -> None:
    """Whoever has the lease; the other's engines get the same roles, though it looks at none."""
    async with redis_server(tmp_path) as redis, gateways(redis.url) as (one, two):
        await one.at_work.look()
        assert one.shared.is_held
        await one.at_work.look()
        await two.at_work.look()
        assert not two.shared.is_held
        await one.at_work.look()
        await two.at_work.look()
        assert Role.PREFILL in roles_of(one.router)
        assert roles_of(two.router) == roles_of(one.router)
        one.router.fleet.override_role("http://2", Role.PREFILL)
        await one.at_work.look()
        await two.at_work.look()
        assert roles_of(two.router) == roles_of(one.router)


async def test_a_decider_that_was_stopped_follows_when_it_goes_on(tmp_path: Path) -> None:
    """Its clock stood still and it takes the lease for its own; by then the key had run out, and another has it."""
    async with redis_server(tmp_path) as redis, gateways(redis.url) as (one, two):
        for _ in range(3):
            await one.at_work.look()
        assert await redis.log_event("DEL", KEY) == 1
        await two.at_work.look()
        assert two.shared.is_held
        two.router.fleet.override_role("http://2", Role.PREFILL)
        await two.at_work.look()
        one.router.fleet.override_role("http://1", Role.PREFILL)
        believed = one.shared.is_held
        await one.at_work.look()
        assert (believed, one.shared.is_held) == (True, False)
        assert roles_of(one.router) == roles_of(two.router)


def shown(router: Router, url: str) -> float:
    """What metrics say of a pod being there for prefill."""
    at_work = RoleController(router, RoleAssigner(router, TERMS), None, lambda *_, **__: None, lambda: 0.0)
    family = next(iter(at_work.collect()))
    return next(
        sample.value
        for sample in family.samples
        if sample.labels == {"upstream": url, "dp_rank": "0", "role": Role.PREFILL.value}
    )


async def test_roles_are_shown() -> None:
    """One metric an engine and role."""
    router = router_of(2)
    router.fleet.override_role("http://0", Role.PREFILL)
    assert shown(router, "http://0") == 1.0
    assert shown(router, "http://1") == 0.0
