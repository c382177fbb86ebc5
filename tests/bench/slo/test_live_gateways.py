"""Several gateways live: engines that are slowed down, and which rows count."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from bench.routing.redis import VenueRedis, redis_binary
from bench.slo.best import Best
from bench.slo.live_gateways import LIVE_LAYOUTS, LIVE_ONE, MAX_BUSY, LiveBlock, slowed
from bench.slo.policies import HEARTH
from bench.slo.reading import load_scenario
from bench.slo.rows import Block
from bench.slo.virtual import Job, play


def test_live_rows_have_names_of_their_own() -> None:
    """They are the rows of one table."""
    names = [layout.name for layout in LIVE_LAYOUTS]
    assert len(set(names)) == len(names)
    assert {"4 gateways, one has 80%", "2 gateways, redis stalls", "4 processes, redis dies", "4 processes"} < set(
        names
    )


@pytest.mark.skipif(redis_binary() is None, reason="no redis-server")
async def test_a_redis_stalls_goes_on_dies_and_returns_empty(tmp_path: Path) -> None:
    """Its port stays the same, and while it is stalled it can be killed."""
    redis = VenueRedis(tmp_path)
    await redis.start()
    client = Redis.from_url(redis.url, socket_timeout=0.05, retry=None)
    try:
        await client.set("key", 1)
        redis.stall()
        with pytest.raises(RedisTimeoutError):
            await client.ping()
        redis.resume()
        await _answering(client)
        assert await client.exists("key")
        redis.stall()
        await redis.kill()
        await redis.start()
        await _answering(client)
        assert not await client.exists("key")
    finally:
        await client.aclose()
        await redis.kill()


async def _answering(client: Redis) -> None:
    while True:
        with suppress(RedisError):
            await client.ping()
            return


def test_a_slowed_scenario_is_the_same_at_another_clock() -> None:
    """At half the load as many requests meet objectives that are twice as long."""
    scenario = load_scenario("overload-2").lasting(40)
    figures = play(Job(scenario, HEARTH, 64.0, 1))
    slow = play(Job(slowed(scenario, 2.0), HEARTH, 32.0, 1))
    assert slow.met_per_s == pytest.approx(figures.met_per_s / 2, rel=0.1)
    assert slow.tiers["gold"].attainment == pytest.approx(figures.tiers["gold"].attainment, abs=0.05)


def test_a_row_on_a_busy_machine_does_not_count() -> None:
    """Neither where one gateway, by which it is judged, was played on a busy machine."""
    scenario = load_scenario("overload-2").lasting(10)
    figures = play(Job(scenario, HEARTH, 20.0, 1))
    names = [LIVE_ONE.name, "2 gateways", "2 gateways, redis dies", "2 gateways, no redis", "4 processes"]
    block = Block(scenario, 20.0, Best(20.0, 1.0, 1.0), dict.fromkeys(names, figures))
    idle = LiveBlock(block, dict.fromkeys(names, 0.5))
    assert len(list(idle.targets())) == 3 + 1 + 0 + 3
    assert len(list(replace(idle, busy={**idle.busy, names[-1]: MAX_BUSY}).targets())) == 3 + 1
    assert not list(replace(idle, busy={**idle.busy, LIVE_ONE.name: MAX_BUSY}).targets())
    assert "4 processes 50%" in str(idle)
