"""The state of canaries in a real Redis: gateways agree, and the last verdict holds without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.canary.redis_store import KEY, RedisStore
from gateway.canary.state_store import StateUnavailable
from gateway.runtime import redis_link
from gateway.runtime.redis_location import parse_redis_url
from routing.canary.evidence import DifferenceEvidence, TrialEvidence
from routing.canary.rollout import CanaryUse
from routing.canary.verdict import NO_STATE, CanaryState, TrialStep, Verdict, advance
from tests.gateway.canary.scene import STANDING, TERMS, Scene
from tests.gateway.kv_index.exchange import until
from tests.gateway.kv_index.redis_servers import redis_server


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis is waited for, however slow this machine is."""
    monkeypatch.setattr(redis_link, "TIMEOUT_S", 60.0)


@asynccontextmanager
async def stores(url: str, count: int) -> AsyncIterator[list[RedisStore]]:
    """Stores of so many gateways, connected."""
    found = [RedisStore(parse_redis_url(url)) for _ in range(count)]
    tasks = [asyncio.create_task(store.run()) for store in found]
    try:
        await until(lambda: all(store.is_connected for store in found))
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_gateways_have_one_verdict(tmp_path: Path) -> None:
    """Of comparisons that each made alone; a gateway that starts later has it too, and Redis keeps it."""
    async with redis_server(tmp_path) as redis, stores(redis.url, 3) as (first, second, third):
        one, two = Scene(first), Scene(second)
        for gateway in (one, two):
            await gateway.look()
        for _ in range(10):
            for gateway in (one, two):
                await gateway.serve_many(20, slower=3.0)
        for gateway in (one, two):
            await gateway.look(11.0)
            assert gateway.controller.verdict is Verdict.REVERT
        assert one.controller.state == two.controller.state
        later = Scene(third)
        await later.look()
        assert later.rollout.use is CanaryUse.NOTHING
        async with redis.client() as client:
            assert await client.ttl(KEY) == -1


async def test_changes_at_once_are_all_kept(tmp_path: Path) -> None:
    """Of gateways that add to the state at the same time, each in as many tries as it takes."""

    def one_more(stored: CanaryState | None) -> CanaryState:
        step = TrialStep(TrialEvidence(errors=DifferenceEvidence(same=1)))
        return advance(stored or NO_STATE, TERMS, step, 0.0)

    async with redis_server(tmp_path) as redis, stores(redis.url, 4) as gateways:
        for _ in range(5):
            await asyncio.gather(*(gateway.update(one_more) for gateway in gateways))
        state = await gateways[0].update(lambda stored: stored or NO_STATE)
    assert state.trial is not None
    assert state.trial.evidence.errors == DifferenceEvidence(same=20)


async def test_a_redis_that_is_lost_loses_no_verdict(tmp_path: Path) -> None:
    """It holds while Redis is away, and is restored where Redis comes back empty."""
    async with redis_server(tmp_path) as redis, stores(redis.url, 2) as (first, second):
        scene = Scene(first)
        await scene.look()
        await scene.serve_many(400, slower=3.0)
        assert scene.controller.verdict is Verdict.REVERT
        await redis.kill()
        with pytest.raises(StateUnavailable, match="Redis"):
            await first.update(lambda stored: stored or NO_STATE)
        await scene.look(11.0)
        assert scene.controller.verdict is Verdict.REVERT
        assert set(await scene.serve_many(20)) == set(STANDING)
        await redis.start()
        async with redis.client() as client:
            await client.flushall()
        await until(lambda: first.is_connected and second.is_connected)
        await scene.look(11.0)
        other = Scene(second)
        await other.look()
        assert other.controller.verdict is Verdict.REVERT
