"""The script in Redis lends as `AccountLeases` does, and whoever asks learns at once or in time that nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway.limits.coordinator import CoordinatorUnavailable
from gateway.limits.redis_coordinator import RedisQuotaCoordinator
from gateway.runtime.redis_location import parse_redis_url
from tenancy.limits.leases import AccountLeases, LeaseRequest
from tests.gateway.kv_index.exchange import until
from tests.gateway.kv_index.redis_servers import Server, free_port, redis_server


@asynccontextmanager
async def lending(url: str, *, answer_s: float = 20.0) -> AsyncIterator[RedisQuotaCoordinator]:
    """A lender that is connected."""
    log_event: Any = lambda *_, **__: None  # noqa: E731
    lender = RedisQuotaCoordinator(parse_redis_url(url), log_event=log_event, draw=lambda: 0.0, answer_s=answer_s)
    task = asyncio.create_task(lender.run())
    try:
        await until(lambda: lender.is_connected)
        yield lender
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def drawn(random: Random, name: str) -> LeaseRequest:
    limit, held = random.choice([10.0, 1000.0, 0.75]), random.choice([0.0, random.random() * 10])
    return LeaseRequest(
        name,
        limit,
        held,
        wanted=held + random.random() * limit,
        minimum=random.choice([0.0, held + 1.0]),
        keeps_s=1000.0,
        gone=random.choice([0.0, random.random()]),
        lasts=random.random() < 0.5,
    )


async def test_redis_lends_as_slices_do(tmp_path: Path) -> None:
    """Three gateways that ask, ask again and leave, with two limits each: to the last bit the same answers."""
    random, slices = Random(7), AccountLeases()
    async with redis_server(tmp_path) as redis, lending(redis.url) as lender:
        for _ in range(400):
            who, asks = random.choice("abc"), [drawn(random, name) for name in ("tokens", "budget/60/1")]
            if random.random() < 0.1:
                slices.release(who, asks, 0.0)
                await lender.release("search/user/ann}", who, asks)
            else:
                assert await lender.lease("search/user/ann}", who, asks) == slices.grant(who, asks, 0.0)
        assert int(str(await redis.log_event("DBSIZE"))) == 1
        assert 1000 <= int(str(await redis.log_event("TTL", "hearth:quota:{search/user/ann}}"))) <= 1060


async def test_what_is_not_replayed_ends(tmp_path: Path) -> None:
    """A slice whose holder is dead comes free, by the clock of Redis."""
    short = [LeaseRequest("tokens", 10.0, 0.0, 10.0, 0.0, keeps_s=0.05)]
    async with redis_server(tmp_path) as redis, lending(redis.url) as lender:
        assert (await lender.lease("a", "dead", short))[0].slice == 10
        async with asyncio.timeout(120):
            while (await lender.lease("a", "living", short))[0].slice == 0:
                pass


async def test_who_calls_a_redis_that_is_away_is_informed(tmp_path: Path) -> None:
    """At once where no connection stands, after a while where it hangs; and it is there again when it is back."""
    ask = [LeaseRequest("tokens", 10.0, 0.0, 1.0, 0.0, keeps_s=10.0)]
    async with redis_server(tmp_path) as redis, lending(redis.url, answer_s=0.5) as lender:
        await redis.hang()
        with pytest.raises(CoordinatorUnavailable):
            await lender.lease("a", "me", ask)
        assert not lender.is_connected
        with pytest.raises(CoordinatorUnavailable):
            await lender.lease("a", "me", ask)
        await redis.wake()
        lender._answer_s = 20.0
        await until(lambda: lender.is_connected)
        await redis.kill()
        with pytest.raises(CoordinatorUnavailable):
            await lender.lease("a", "me", ask)
        await redis.start()
        await until(lambda: lender.is_connected)
        assert (await lender.lease("a", "me", ask))[0].slice == 1


async def test_a_user_who_may_do_little_is_enough(tmp_path: Path) -> None:
    """The commands of the script, on our keys; said in the documentation."""
    async with redis_server(tmp_path) as redis:
        allowed = ("+ping", "+select", "+eval", "+evalsha", "+hgetall", "+hset", "+hdel", "+expire", "+time")
        await redis.log_event("ACL", "SETUSER", "hearth", "on", ">hunter2", "~hearth:quota:*", *allowed)
        async with lending(f"redis://hearth:hunter2@127.0.0.1:{redis.port}") as lender:
            ask = [LeaseRequest("tokens", 10.0, 0.0, 1.0, 0.0, keeps_s=10.0)]
            assert (await lender.lease("a", "me", ask))[0].slice == 1


async def test_who_may_not_run_the_script_is_reported(tmp_path: Path) -> None:
    """As of a Redis that is away: one line, and limits go on by what the gateway knows."""
    stated: list[dict[str, object]] = []
    async with redis_server(tmp_path) as redis:
        await redis.log_event("ACL", "SETUSER", "hearth", "on", ">hunter2", "~*", "+ping", "+select")
        place = parse_redis_url(f"redis://hearth:hunter2@127.0.0.1:{redis.port}")
        log_event: Any = lambda level, words, **more: stated.append({"level": level, "words": words, **more})  # noqa: E731
        lender = RedisQuotaCoordinator(place, log_event=log_event, draw=lambda: 0.0, answer_s=20.0)
        task = asyncio.create_task(lender.run())
        for _ in range(3):
            await until(lambda: lender.is_connected)
            with pytest.raises(CoordinatorUnavailable):
                await lender.lease("a", "me", [LeaseRequest("tokens", 10.0, 0.0, 1.0, 0.0, keeps_s=10.0)])
        await until(lambda: stated)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [(line["level"], line["error"]) for line in stated] == [("warning", "NoPermissionError")]


async def test_a_cluster_lends_too(tmp_path: Path) -> None:
    """Every account lies in one slot, whichever node has it."""
    server = Server(tmp_path / "redis", free_port(), ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000"))
    await server.start()
    try:
        await server.log_event("CLUSTER", "ADDSLOTS", *range(16384))
        async with asyncio.timeout(120):
            while b"cluster_state:ok" not in bytes(await server.log_event("CLUSTER", "INFO")):  # type: ignore[call-overload]
                await until(lambda: True)
        async with lending(f"redis+cluster://127.0.0.1:{server.port}") as lender:
            for path in ("", "a", "search/user/{x}"):
                ask = [LeaseRequest("tokens", 10.0, 0.0, 1.0, 0.0, keeps_s=10.0)]
                assert (await lender.lease(path, "me", ask))[0].slice == 1
    finally:
        await server.kill()
