"""Drains for findings by way of a real Redis: one gateway decides, and another follows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from diagnosis.facts import FleetFacts
from diagnosis.finding import Diagnosis
from gateway.diagnosis.draining import KEPT_S, KEY, MIN_LOOKS, QUIET_S, FindingDrains
from gateway.roles import lease, redis_lease
from gateway.roles.redis_lease import RedisRoleLease
from gateway.runtime import redis_link
from gateway.runtime.redis_location import parse_redis_url
from tests.gateway.diagnosis.test_finding_drains import FIRST, a_finding, a_pod
from tests.gateway.kv_index.exchange import until
from tests.gateway.kv_index.redis_servers import redis_server


class Gateway:
    """Its drains and their lease, on a clock that a test moves."""

    def __init__(self, url: str, who: str) -> None:
        self.now_s = 0.0
        self.lease = RedisRoleLease(parse_redis_url(url), who, lambda: self.now_s, key=KEY)
        self.drains = FindingDrains(
            frozenset({"rdma_port_down"}), lambda *_, **__: None, clock=lambda: self.now_s, lease=self.lease
        )

    def look(self, *pods: int) -> None:
        """Look at five pods, of which these have a finding."""
        findings = (a_finding(*pods),) if pods else ()
        self.drains.update(FleetFacts(1.0, tuple(map(a_pod, range(5)))), Diagnosis(1.0, FIRST, findings))


async def test_a_gateway_follows_what_another_has_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one too, which has not looked often enough to decide; without Redis the drain ends."""
    monkeypatch.setattr(redis_link, "TIMEOUT_S", 60.0)
    for module in (lease, redis_lease):
        monkeypatch.setattr(module, "LEASE_S", 3600.0)
    async with redis_server(tmp_path) as redis:
        one, two = Gateway(redis.url, "one"), Gateway(redis.url, "two")
        tasks = [asyncio.create_task(each.lease.run()) for each in (one, two)]
        await until(lambda: one.lease.is_connected and two.lease.is_connected)
        for _ in range(MIN_LOOKS):
            one.look()
        await one.drains.exchange()
        one.now_s += QUIET_S
        one.look(3)
        await one.drains.exchange()
        await two.drains.exchange()
        assert (one.lease.is_held, two.lease.is_held) == (True, False)
        assert one.drains.held == two.drains.held == {"http://p3:1"}
        await redis.kill()
        two.now_s += KEPT_S - 1
        await two.drains.exchange()
        assert two.drains.held == {"http://p3:1"}
        two.now_s += 1
        await two.drains.exchange()
        assert two.drains.held == set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
