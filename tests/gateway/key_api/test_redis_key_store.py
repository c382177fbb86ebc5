"""Keys in Redis: no update is lost, mirrors follow, and a revocation binds with Redis down as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any

import pytest

from gateway.identity.redis_keys import REVOKED, KeyMirror, RedisKeys, mirror, mirrored
from gateway.key_api import redis_key_store
from gateway.key_api.key_store import CreatedKey, KeyNotFound, TooManyKeys, VersionMismatch
from gateway.key_api.redis_key_store import RedisKeyStore
from gateway.runtime.redis_client import connect_redis
from gateway.runtime.redis_location import RedisLocation, parse_redis_url
from tenancy.document import InvalidValue
from tests.gateway.kv_index.redis_servers import Server, redis_server


class Host:
    """A store, its mirror, and what that logs."""

    def __init__(self, place: RedisLocation, root: Path) -> None:
        root.mkdir()
        self.root = root
        self.place = place
        self.store = RedisKeyStore(place, root)
        self.events = list[str]()
        self.has_logged = asyncio.Event()
        self.mirror = KeyMirror(place, root, self._log_event)

    def _log_event(self, _: str, event: str, **__: object) -> None:
        self.events.append(event)
        self.has_logged.set()

    async def do(self, call: Callable[..., Any], *arguments: Any, **fields: Any) -> Any:
        return await asyncio.to_thread(call, *arguments, **fields)

    async def create(self, key_id: str | None = None, tenant: str = "legal", **fields: Any) -> CreatedKey:
        given = {"user": None, "group": None, "until_s": inf, "limits": {}} | fields
        made = await self.do(self.store.create, tenant, key_id, **given)
        assert isinstance(made, CreatedKey)
        return made

    async def look(self) -> dict[tuple[str, str], str]:
        """Let the mirror look once; return what it holds."""
        async with connect_redis(self.place, answer_s=30.0) as client:
            await self.mirror.look(RedisKeys(client, self.place))
        return mirrored(self.root)


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[Server]:
    async with redis_server(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def hosts(redis: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Host, Host]:
    monkeypatch.setattr(redis_key_store, "ANSWER_S", 30.0)
    place = parse_redis_url(f"{redis.url}?prefix=fleet-a:")
    return Host(place, tmp_path / "one"), Host(place, tmp_path / "two")


async def test_keys_are_digests_in_redis_and_on_every_host(redis: Server, hosts: tuple[Host, Host]) -> None:
    """No secret is anywhere; lists are in order and in pages."""
    one, two = hosts
    made = await one.create("ci", user="ann", limits={"rpm": "5"})
    await one.create("b", tenant="search")
    content = f"{sha256(made.secret.encode()).hexdigest()} user=ann rpm=5\n"
    assert await redis.log_event("HGET", "fleet-a:hearth:{keys}:of:legal", "ci") == content.encode()
    assert (await two.look())["legal", "ci"] == content
    assert (two.root / "legal/ci").stat().st_mode & 0o777 == 0o600
    listed = await two.do(two.store.list, None, ("", ""), 10)
    assert [(each.entry.tenant, each.entry.key_id) for each in listed] == [("legal", "ci"), ("search", "b")]
    assert [each.entry.key_id for each in await two.do(two.store.list, None, ("legal", "ci"), 1)] == ["b"]
    assert await two.do(two.store.read, "legal", "ci") == made.stored


async def test_of_concurrent_changes_of_one_version_one_is_made(hosts: tuple[Host, Host]) -> None:
    """Whichever host they come from; the others find that the key was changed, and have made nothing."""
    one, two = hosts
    made = await one.create("ci", group="interns")
    results = await asyncio.gather(
        *(host.do(host.store.rotate, "legal", "ci", made.stored.version, 1000.0) for host in (one, two) * 3),
        return_exceptions=True,
    )
    (fresh,) = [each for each in results if isinstance(each, CreatedKey)]
    assert sum(isinstance(each, VersionMismatch) for each in results) == 5
    assert fresh.stored.entry.group == "interns"
    assert len(await one.look()) == 2
    assert (await one.do(one.store.read, "legal", "ci")).entry.until_s == 1000.0


async def test_changes_are_checked(hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch) -> None:
    """A taken id, an old version, a missing key, and more keys than a tenant may have."""
    one, _ = hosts
    made = await one.create("ci")
    version = made.stored.version
    with pytest.raises(InvalidValue, match="already exists"):
        await one.create("ci")
    with pytest.raises(InvalidValue, match="dot"):
        await one.create(".hidden")
    limited = await one.do(one.store.limit, "legal", "ci", version, {"rpm": "9"})
    assert limited.entry.limits == {"rpm": "9"}
    for call, arguments in ((one.store.revoke, ()), (one.store.limit, ({},)), (one.store.rotate, (5.0,))):
        with pytest.raises(VersionMismatch):
            await one.do(call, "legal", "ci", version, *arguments)
        with pytest.raises(KeyNotFound):
            await one.do(call, "legal", "other", version, *arguments)
    monkeypatch.setattr(redis_key_store, "MAX_KEYS_PER_TENANT", 1)
    with pytest.raises(TooManyKeys):
        await one.create("second")
    assert await one.do(one.store.revoke, "legal", "ci", limited.version) is True
    assert await one.look() == {}


async def test_a_revocation_binds_while_redis_is_down(hosts: tuple[Host, Host]) -> None:
    """On its host at once, and on the others when Redis is back, whatever was changed of the key meanwhile."""
    one, two = hosts
    made, kept = await one.create("ci"), await one.create("kept")
    for host in hosts:
        assert len(await host.look()) == 2
    place, one.store = one.place, RedisKeyStore(parse_redis_url("redis://127.0.0.1:9"), one.root)
    assert await one.do(one.store.revoke, "legal", "ci", made.stored.version) is False
    assert set(mirrored(one.root)) == {("legal", "kept")}
    with pytest.raises(ConnectionError):
        await one.create("more")
    with pytest.raises(VersionMismatch):
        await one.do(one.store.revoke, "legal", "kept", made.stored.version)
    one.store = RedisKeyStore(place, one.root)
    await two.do(two.store.limit, "legal", "ci", made.stored.version, {"rpm": "1"})
    assert set(await one.look()) == set(await two.look()) == {("legal", "kept")}
    assert not [path for path in (one.root / REVOKED).rglob("*") if path.is_file()]
    again = await two.create("ci")
    assert set(await one.look()) == {("legal", "kept"), ("legal", "ci")}
    assert again.stored.version != kept.stored.version


async def test_a_revocation_is_not_undone_by_keys_that_were_read_before(hosts: tuple[Host, Host]) -> None:
    """Redis goes while a mirror is being renewed: what was revoked meanwhile does not come back with what it had."""
    one, _ = hosts
    made = await one.create("ci")
    await one.create("kept")
    read_before = await one.look()
    one.store = RedisKeyStore(parse_redis_url("redis://127.0.0.1:9"), one.root)
    assert await one.do(one.store.revoke, "legal", "ci", made.stored.version) is False
    assert mirror(one.root, read_before) == 0
    assert set(mirrored(one.root)) == {("legal", "kept")}


async def test_a_redis_that_has_lost_its_data_changes_no_mirror(redis: Server, hosts: tuple[Host, Host]) -> None:
    """Keys stay valid, and the next change gives them back to Redis."""
    one, two = hosts
    await one.create("ci")
    before = await one.look()
    await two.look()
    await redis.log_event("FLUSHALL")
    assert await one.look() == before
    assert one.events == ["key_store_empty"]
    await two.create("more")
    assert set(await one.look()) == {("legal", "ci"), ("legal", "more")}
    assert one.events == ["key_store_empty", "key_store_connected"]


async def test_what_gateways_could_not_read_is_left_out(redis: Server, hosts: tuple[Host, Host]) -> None:
    """It would keep the whole policy from being reloaded."""
    one, _ = hosts
    await one.create("ci")
    bad: list[tuple[str, str | bytes]] = [("bad", "nonsense"), ("../../x", "0" * 64), (".x", "0" * 64)]
    for key_id, content in (*bad, ("bytes", b"\xff\xfe")):
        await redis.log_event("HSET", "fleet-a:hearth:{keys}:of:legal", key_id, content)
    await redis.log_event("SET", "fleet-a:hearth:{keys}:version", "another")
    assert set(await one.look()) == {("legal", "ci")}
    assert one.events == ["key_store_invalid_keys"]


async def test_a_mirror_runs_until_it_is_cancelled(tmp_path: Path) -> None:
    """Without a Redis too: it says so once."""
    host = Host(parse_redis_url("redis://127.0.0.1:9"), tmp_path / "one")
    task = asyncio.create_task(host.mirror.run())
    async with asyncio.timeout(60):
        await host.has_logged.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert host.events == ["key_store_lost"]
