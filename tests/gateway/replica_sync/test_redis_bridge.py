"""Hosts route as one through Redis, and go on whatever becomes of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from gateway.replica_sync import redis_bridge
from gateway.replica_sync.redis_bridge import (
    ALL_REPLICAS,
    ENTRY_FIELD,
    MAX_ENTRY_BYTES,
    STREAM_KEY,
    RedisBridge,
    StreamEntry,
    format_entry_id,
    parse_entry_id,
)
from gateway.runtime.redis_client import RedisClient
from tests.gateway.kv_index.exchange import Host, Worker, alike, host, until
from tests.gateway.kv_index.redis_servers import Server, redis_server
from tests.routing.engines import TALK, ask, place, serve


def bridge(of: Host) -> RedisBridge:
    assert of.warmth.bridge is not None
    return of.warmth.bridge


def connected(*hosts: Host) -> bool:
    return all(bridge(one).is_connected for one in hosts)


def owes_nothing(worker: Worker) -> bool:
    return worker.router.ledger.is_empty()


async def agree(one: Worker, other: Worker) -> None:
    """What is placed on one host is known on the other, both ways, and given back."""
    here = place(one.router, ask(b"from here " * 200), now_s=one.now_s(), draw=0.1)
    there = place(other.router, ask(b"from there " * 200), now_s=other.now_s(), draw=0.9)
    await until(lambda: alike(one, other) and sum(one.router.ledger.running) == 2)
    here.release(one.now_s())
    there.release(other.now_s())
    await until(lambda: owes_nothing(one) and owes_nothing(other))


async def test_hosts_know_what_the_others_do(tmp_path: Path) -> None:
    """Load, prefixes and sessions of one host are the other's, and the round trip is measured."""
    async with (
        redis_server(tmp_path) as redis,
        host(tmp_path / "a", redis.url) as here,
        host(tmp_path / "b", redis.url) as there,
    ):
        one, other = here.worker(), there.worker()
        began_s = one.now_s()
        await until(lambda: connected(here, there))
        await agree(one, other)
        first = serve(one.router, ask(session="talk"), now_s=one.now_s(), draw=0.9)
        await until(lambda: other.router.sessions.get("talk") is not None and owes_nothing(other))
        second = place(other.router, ask(TALK + b"And?", session="talk"), now_s=other.now_s())
        assert second.engine.name == first.engine.name
        assert second.predicted.cached_tokens > 0.9 * second.predicted.prompt_tokens
        second.release(other.now_s())
        staleness_s = bridge(here).staleness_s()
        assert staleness_s is not None
        assert 0 < staleness_s < one.now_s() - began_s
        shown = here.registry.get_sample_value
        assert shown("hearth_redis_connected") == 1
        assert (shown("hearth_redis_entries_written_total") or 0) > 1


async def test_who_joins_is_warmed_by_the_stream_s_past(tmp_path: Path) -> None:
    """A host that comes when all others have gone still knows what engines hold, and charges none of it."""
    async with redis_server(tmp_path) as redis:
        async with host(tmp_path / "a", redis.url) as here:
            one = here.worker()
            await until(lambda: connected(here))
            serve(one.router, ask(session="talk"), now_s=one.now_s(), draw=0.9)
            place(one.router, ask(b"never ended " * 200), now_s=one.now_s())
            await until(lambda: one.sharing.sent >= 4)
            written = bridge(here).written
            await until(lambda: bridge(here).written > written and not bridge(here)._outbox)
        async with host(tmp_path / "b", redis.url) as there:
            other = there.worker()
            await until(lambda: other.sharing.history_updates)
            placement = place(other.router, ask(TALK + b"And?", session="talk"), now_s=other.now_s())
            assert placement.predicted.cached_tokens > 0.9 * placement.predicted.prompt_tokens
            placement.release(other.now_s())
            assert owes_nothing(other)


@pytest.mark.parametrize("trouble", ["killed and empty", "hung", "flushed", "clients killed", "key of another kind"])
async def test_trouble_passes(tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While Redis is in trouble everybody goes on alone; when it has passed all agree again."""
    monkeypatch.setattr(redis_bridge, "ANSWER_S", 0.4)
    async with (
        redis_server(tmp_path) as redis,
        host(tmp_path / "a", redis.url) as here,
        host(tmp_path / "b", redis.url) as there,
    ):
        one, other = here.worker(), there.worker()
        await until(lambda: connected(here, there))
        held = place(one.router, ask(), now_s=one.now_s())
        ended = place(one.router, ask(b"ends in between " * 100), now_s=one.now_s(), draw=0.5)
        await until(lambda: alike(one, other))
        await make(trouble, redis)
        ended.release(one.now_s())
        during = place(one.router, ask(b"meanwhile " * 300), now_s=one.now_s(), draw=0.7)
        await mend(trouble, redis, here, there)
        await until(lambda: connected(here, there) and alike(one, other))
        assert list(other.router.index.match(during.request.prompt, 0b111)), "what was placed meanwhile is told after"
        await agree_with(held, during, one, other)


async def make(trouble: str, redis: Server) -> None:
    match trouble:
        case "killed and empty":
            await redis.kill()
        case "hung":
            await redis.hang()
        case "flushed":
            await redis.log_event("FLUSHALL")
        case "clients killed":
            await redis.log_event("CLIENT", "KILL", "TYPE", "normal")
        case "key of another kind":
            await redis.log_event("SET", STREAM_KEY, "no stream")


async def mend(trouble: str, redis: Server, *hosts: Host) -> None:
    match trouble:
        case "killed and empty":
            await until(lambda: not any(bridge(one).reads or bridge(one).writes for one in hosts))
            await redis.start()
        case "hung":
            await until(lambda: not any(bridge(one).reads for one in hosts))
            assert all((bridge(one).staleness_s() or 0) > 0 for one in hosts)
            await redis.wake()
        case "key of another kind":
            await until(lambda: not any(bridge(one).reads for one in hosts))
            await redis.log_event("DEL", STREAM_KEY)


async def agree_with(held: object, during: object, one: Worker, other: Worker) -> None:
    for placement in (held, during):
        placement.release(one.now_s())  # type: ignore[attr-defined]
    await until(lambda: owes_nothing(one) and owes_nothing(other))
    await agree(one, other)


async def test_a_failover_loses_nothing_for_long(tmp_path: Path) -> None:
    """The master dies, a replica that lags behind is promoted: all agree again, by what is stated."""
    async with redis_server(tmp_path / "one") as master, redis_server(tmp_path / "two") as replica:
        await replica.log_event("REPLICAOF", "127.0.0.1", master.port)
        async with host(tmp_path / "a", master.url) as here, host(tmp_path / "b", master.url) as there:
            one, other = here.worker(), there.worker()
            await until(lambda: connected(here, there))
            held = place(one.router, ask(), now_s=one.now_s())
            await until(lambda: alike(one, other))
            await master.kill()
            during = place(one.router, ask(b"meanwhile " * 300), now_s=one.now_s(), draw=0.7)
            await replica.log_event("REPLICAOF", "NO", "ONE")
            # The name now leads elsewhere: a proxy, DNS, or whoever holds the address.
            await replica.kill()
            replica.port = master.port
            await replica.start()
            await until(lambda: connected(here, there) and alike(one, other))
            await agree_with(held, during, one, other)


async def test_a_stream_that_begins_again_with_an_earlier_clock_is_read(tmp_path: Path) -> None:
    """Ids behind the last one that was read are found by our own writing."""
    async with (
        redis_server(tmp_path) as redis,
        host(tmp_path / "a", redis.url) as here,
        host(tmp_path / "b", redis.url) as there,
    ):
        one, other = here.worker(), there.worker()
        await until(lambda: connected(here, there))
        await agree(one, other)
        for each in (here, there):
            bridge(each)._last = (1 << 50, 0)
        await agree(one, other)


async def test_it_begins_without_redis(tmp_path: Path) -> None:
    """A host whose Redis is away at its start serves; when Redis comes, it shares."""
    server = Server(tmp_path / "redis", 1)
    async with redis_server(tmp_path) as found:
        server = Server(tmp_path / "redis", found.port)
    async with host(tmp_path / "a", server.url) as here, host(tmp_path / "b", server.url) as there:
        one, other = here.worker(), there.worker()
        held = place(one.router, ask(), now_s=one.now_s())
        await until(lambda: any(line[1] == "replica_sync_unavailable" for line in here.stated.lines))
        await server.start()
        try:
            await until(lambda: connected(here, there) and alike(one, other))
            held.release(one.now_s())
            await until(lambda: owes_nothing(other))
            await agree(one, other)
        finally:
            await server.kill()


async def test_what_is_kept_for_redis_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Away for long, the oldest news are dropped and counted; back, all is stated, and prompts are sent again."""
    monkeypatch.setattr(redis_bridge, "MAX_OUTBOX_BYTES", 14_000)
    async with (
        redis_server(tmp_path) as redis,
        host(tmp_path / "a", redis.url) as here,
        host(tmp_path / "b", redis.url) as there,
    ):
        one, other = here.worker(), there.worker()
        await until(lambda: connected(here, there))
        await agree(one, other)
        await redis.kill()
        held = place(one.router, ask(), now_s=one.now_s())
        for number in range(110):
            serve(one.router, ask(b"Talk %d. " % number * 100), now_s=one.now_s())
            sent = one.sharing.sent
            await until(lambda sent=sent: one.sharing.sent > sent)  # type: ignore[misc]
        await until(lambda: bridge(here).dropped > 0)
        assert bridge(here)._outbox_bytes <= 14_000
        await redis.start()
        await until(lambda: alike(one, other))
        prompts = [ask(b"Talk %d. " % number * 100).prompt for number in range(110)]
        await until(lambda: all(other.router.index.match(prompt, 0b111) for prompt in prompts))
        held.release(one.now_s())
        await until(lambda: owes_nothing(other))
        assert (
            here.registry.get_sample_value("hearth_replica_sync_dropped_total", {"target": "redis"})
            == bridge(here).dropped
        )


async def test_external_entries_and_a_full_disk_are_no_end(tmp_path: Path) -> None:
    """Entries that are none of ours are counted; where Redis takes no writes, reads go on and the other way round."""
    async with (
        redis_server(tmp_path) as redis,
        host(tmp_path / "a", redis.url) as here,
        host(tmp_path / "b", redis.url) as there,
    ):
        one, other = here.worker(), there.worker()
        await until(lambda: connected(here, there))
        await redis.log_event("XADD", STREAM_KEY, "*", ENTRY_FIELD, b"\xc1")
        await redis.log_event("XADD", STREAM_KEY, "*", "what", "is this")
        await until(lambda: bridge(here).strange == bridge(there).strange == 2)
        await redis.log_event("CONFIG", "SET", "maxmemory", "1")
        held = place(one.router, ask(), now_s=one.now_s())
        await until(lambda: bridge(here).reads and not bridge(here).writes)
        await redis.log_event("CONFIG", "SET", "maxmemory", "0")
        await until(lambda: alike(one, other))
        held.release(one.now_s())


async def test_a_writer_that_floods_the_stream_does_not_end_the_exchange(tmp_path: Path) -> None:
    """Garbage, entries that are too large, and requests without end: they are counted, and good hosts go on."""
    async with (
        redis_server(tmp_path) as redis,
        host(tmp_path / "a", redis.url) as here,
        host(tmp_path / "b", redis.url) as there,
    ):
        one, other = here.worker(), there.worker()
        await until(lambda: connected(here, there))
        await agree(one, other)
        kept = here.warmth.hub.history_bytes
        for _ in range(20):
            garbage = StreamEntry(1, 0, [b"garbage" * 1000] * 10, [ALL_REPLICAS, one.sharing.replica_id] * 1000)
            await redis.log_event("XADD", STREAM_KEY, "*", ENTRY_FIELD, msgspec.msgpack.encode(garbage))
        await redis.log_event("XADD", STREAM_KEY, "*", ENTRY_FIELD, bytes(MAX_ENTRY_BYTES + 1))
        await redis.log_event("XADD", STREAM_KEY, "*", ENTRY_FIELD, bytes(MAX_ENTRY_BYTES + 1))
        await until(lambda: bridge(here).strange == bridge(there).strange == 202)
        await agree(one, other)
        assert here.warmth.hub.history_bytes < kept + 100_000
        assert connected(here, there)


async def test_an_entry_that_takes_too_long_to_read_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reader would ask for it again and again, and receive nothing that stands behind it."""
    async with (
        redis_server(tmp_path) as redis,
        host(tmp_path / "a", redis.url) as here,
        host(tmp_path / "b", redis.url) as there,
    ):
        one, other = here.worker(), there.worker()
        await until(lambda: connected(here, there))
        await agree(one, other)
        begun, read = asyncio.Event(), list[int]()

        async def too_slow(client: RedisClient, at_once: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
            begun.set()
            entries = await RedisBridge._read_entries(bridge(here), client, at_once)
            if any(b"huge" in fields for _, fields in entries):
                read.append(at_once)
                await until(lambda: bridge(here).writes)  # A read that is too slow takes seconds.
                raise TimeoutError
            return entries

        monkeypatch.setattr(bridge(here), "_read_entries", too_slow)
        await begun.wait()  # The read that was under way is not replaced.
        await redis.log_event("XADD", STREAM_KEY, "*", "huge", "entry")
        await until(lambda: len(read) >= 3 and connected(here))
        assert read[-1] == 1
        await agree(one, other)


async def test_a_loss_is_warned_of_once(tmp_path: Path) -> None:
    """Two connections lose the same Redis, and try again many times: one warning, and one line when both are back."""

    def stated(words: str) -> list[str]:
        return [line[0] for line in here.stated.lines if line[1] == words]

    async with redis_server(tmp_path) as redis, host(tmp_path / "a", redis.url) as here:
        for times in (1, 2):
            await until(lambda: connected(here))
            await redis.kill()
            await until(lambda: not connected(here))
            await redis.start()
            await until(lambda: connected(here))
            assert stated("replica_sync_unavailable") == ["warning"] * times
            assert stated("replica_sync_recovered") == ["info"] * times


async def test_no_password_is_ever_stated(tmp_path: Path) -> None:
    """Neither a Redis that refuses the password nor one that is away makes us say it."""
    async with redis_server(tmp_path, "--requirepass", "hunter2") as redis:
        url = f"redis://:wrong-hunter2@127.0.0.1:{redis.port}"
        async with host(tmp_path / "a", url) as here:
            await until(lambda: any(line[1] == "replica_sync_unavailable" for line in here.stated.lines))
            assert "hunter2" not in repr(here.stated.lines) + repr(bridge(here)) + repr(bridge(here)._place)


def test_ids_are_compared_as_numbers() -> None:
    """The tenth entry of a millisecond comes behind the second."""
    assert parse_entry_id(b"5-10") > parse_entry_id("5-2") > parse_entry_id("4")
    assert format_entry_id(parse_entry_id("1700000000000-3")) == "1700000000000-3"
