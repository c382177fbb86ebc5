"""Connects to a Redis location: one server, the master behind sentinels, or a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from gateway.runtime.redis_location import RedisLocation

CONNECT_TIMEOUT_S = 2.0

CLOSE_TIMEOUT_S = 1.0

RedisClient = Redis | RedisCluster


@asynccontextmanager
async def connect_redis(place: RedisLocation, *, answer_s: float) -> AsyncIterator[RedisClient]:
    """Open a client with a response timeout of `answer_s` and without retries; it is closed at the end."""
    client, *answered = _made(place, answer_s)
    try:
        yield client
    finally:
        for each in (client, *answered):
            with suppress(Exception):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await each.aclose()


def _made(place: RedisLocation, answer_s: float) -> tuple[RedisClient, ...]:
    """Return the client, followed by those of its sentinels."""
    options: dict[str, Any] = {
        "username": place.username,
        "password": place.password,
        "socket_timeout": answer_s,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
    }
    tls: dict[str, Any] = {"ssl": True, **place.tls} if place.is_tls else {}
    if place.kind == "cluster":
        return (RedisCluster(startup_nodes=[ClusterNode(host, port) for host, port in place.hosts], **options, **tls),)
    if place.kind == "sentinel":
        connect_options = {
            **tls,
            **{key: options[key] for key in ("socket_timeout", "socket_connect_timeout", "protocol", "retry")},
            "username": place.sentinel_username,
            "password": place.sentinel_password,
        }
        sentinel = Sentinel(list(place.hosts), sentinel_kwargs=connect_options, **options, **tls)  # type: ignore[no-untyped-call]
        master: Redis = sentinel.master_for(place.service, db=place.db)
        return (master, *sentinel.sentinels)
    if place.path is not None:
        return (Redis(unix_socket_path=place.path, db=place.db, **options),)
    (host, port) = place.hosts[0]
    return (Redis(host=host, port=port, db=place.db, **options, **tls),)
