"""Redis is pinged, and one that is away counts as slow."""

import asyncio
from pathlib import Path

from gateway.diagnosis.redis_latency import TIMEOUT_S, RedisLatency
from gateway.runtime.redis_location import parse_redis_url
from tests.gateway.kv_index.redis_servers import redis_server


async def first_of(url: str) -> float:
    loop = asyncio.get_running_loop()
    noted: asyncio.Future[float] = loop.create_future()

    def note(seconds: float) -> None:
        if not noted.done():
            noted.set_result(seconds)

    latency = RedisLatency(parse_redis_url(url), note, loop.time)
    task = asyncio.create_task(latency.run())
    try:
        async with asyncio.timeout(30):
            return await noted
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_ping_is_timed(tmp_path: Path) -> None:
    """Below the time after which it would count as away."""
    async with redis_server(tmp_path) as server:
        assert 0.0 < await first_of(server.url) < TIMEOUT_S


async def test_a_redis_that_is_away_is_slow() -> None:
    """As slow as the limit."""
    assert await first_of("redis://127.0.0.1:1") == TIMEOUT_S
