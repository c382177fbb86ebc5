"""Keys in Redis, and the folder on each host that mirrors them: Redis is the source of truth, the folder what is read.

The policy reads the folder as it reads any other (`auth.keys_dir`), so that keys are accepted, and a gateway starts,
while Redis is down. A revocation that could not reach Redis is kept beside the mirror until it has. Redis that has lost
its data changes nothing in a mirror: a missing version is not an empty store.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from gateway.identity.key_folder import KeyFolder, write_key_file
from gateway.runtime.event_log import LogFunction
from gateway.runtime.guard import raise_if_cancelled, restarted
from gateway.runtime.redis_client import RedisClient, connect_redis
from gateway.runtime.redis_location import RedisLocation
from tenancy.document import InvalidValue
from tenancy.reading.auth import read_key_file
from tenancy.reading.fields import name

ANSWER_S = 2.0

POLL_INTERVAL_S = 2.0

REVOKED = ".revoked"
"""Folder beside the tenants': revocations that Redis does not have yet, `<tenant>/<key id>` with the digest."""

DONE, TAKEN, CHANGED, ABSENT, FULL = b"done", b"taken", b"changed", b"absent", b"full"

CHANGE = """
local keys, tenants, version = KEYS[1], KEYS[2], KEYS[3]
local tenant, room, mark, grows = ARGV[1], tonumber(ARGV[2]), ARGV[3], 0
for at = 4, #ARGV, 3 do
  local stored = redis.call('HGET', keys, ARGV[at]) or ''
  if stored ~= ARGV[at + 1] then
    if stored == '' then return 'absent' end
    return ARGV[at + 1] == '' and 'taken' or 'changed'
  end
  if stored == '' then grows = grows + 1 end
end
if grows > 0 and redis.call('HLEN', keys) + grows > room then return 'full' end
for at = 4, #ARGV, 3 do
  if ARGV[at + 2] == '' then redis.call('HDEL', keys, ARGV[at])
  else redis.call('HSET', keys, ARGV[at], ARGV[at + 2]) end
end
if redis.call('HLEN', keys) == 0 then redis.call('SREM', tenants, tenant)
else redis.call('SADD', tenants, tenant) end
redis.call('SET', version, mark)
return 'done'
"""
"""Changes keys of one tenant, each given as id, content as it was read, and new content ('' is none): all or none."""

REVOKE = """
local stored = redis.call('HGET', KEYS[1], ARGV[2])
if stored and string.sub(stored, 1, #ARGV[3]) == ARGV[3] then
  redis.call('HDEL', KEYS[1], ARGV[2])
  if redis.call('HLEN', KEYS[1]) == 0 then redis.call('SREM', KEYS[2], ARGV[1]) end
  redis.call('SET', KEYS[3], ARGV[4])
end
"""
"""Deletes a key, whatever was changed of it, unless its id has another digest meanwhile."""

KeyContents = dict[tuple[str, str], str]
"""Content of key files by tenant and key id."""


class RedisKeys:
    """The keys of one Redis; `client` is connected."""

    def __init__(self, client: RedisClient, place: RedisLocation) -> None:
        self._client: Any = client
        self._root = f"{place.prefix}hearth:{{keys}}"  # One slot of a cluster.

    async def version(self) -> bytes | None:
        """Return what changes with each change; None where Redis has no keys of ours, or has lost them."""
        return cast("bytes | None", await self._client.get(f"{self._root}:version"))

    async def tenants(self) -> list[str]:
        """Return the tenants that have keys, in order."""
        return sorted(_text(each) for each in await self._client.smembers(f"{self._root}:tenants"))

    async def keys_of(self, tenant: str) -> dict[str, str]:
        """Return the content of each key by its id."""
        found = await self._client.hgetall(self._hash(tenant))
        return {_text(key_id): _text(content) for key_id, content in found.items()}

    async def find(self, tenant: str, key_id: str) -> str | None:
        """Return the content of one key."""
        found = await self._client.hget(self._hash(tenant), key_id)
        return None if found is None else _text(found)

    async def change(self, tenant: str, room: int, *changes: tuple[str, str, str]) -> bytes:
        """Make all changes or none: id, content as it was read, new content, empty for none. Returns the result."""
        arguments = [argument for change in changes for argument in change]
        keys = self._keys(tenant)
        return cast("bytes", await self._client.eval(CHANGE, 3, *keys, tenant, room, _mark(), *arguments))

    async def revoke(self, tenant: str, key_id: str, digest: str) -> None:
        """Delete a key with this digest, if it is there."""
        await self._client.eval(REVOKE, 3, *self._keys(tenant), tenant, key_id, digest, _mark())

    async def fill(self, contents: Mapping[tuple[str, str], str]) -> None:
        """Give an empty store these keys, and a version."""
        for (tenant, key_id), content in contents.items():
            await self._client.hsetnx(self._hash(tenant), key_id, content)
            await self._client.sadd(f"{self._root}:tenants", tenant)
        await self._client.set(f"{self._root}:version", _mark())

    async def all_keys(self) -> KeyContents:
        """Return everything."""
        return {
            (tenant, key_id): content
            for tenant in await self.tenants()
            for key_id, content in (await self.keys_of(tenant)).items()
        }

    def _hash(self, tenant: str) -> str:
        return f"{self._root}:of:{tenant}"

    def _keys(self, tenant: str) -> tuple[str, str, str]:
        return self._hash(tenant), f"{self._root}:tenants", f"{self._root}:version"


def _text(value: bytes) -> str:
    """Return text also of bytes that are no UTF-8: one damaged entry must not keep all others from the mirrors."""
    return value.decode("utf-8", "replace")


def _mark() -> str:
    """Return a version that there never was: a counter begins anew where Redis has lost its data."""
    return secrets.token_hex(8)


def mirrored(root: Path) -> KeyContents:
    """Return what the folder holds."""
    folder = KeyFolder(root)
    return {(entry.tenant, entry.key_id): folder.content(entry.tenant, entry.key_id) for entry in folder.entries()}


def mirror(root: Path, contents: Mapping[tuple[str, str], str]) -> int:
    """Make the folder hold these keys and no others, without those whose revocation Redis does not have yet. Returns
    how many are left out, for a bad name or content.
    """
    held, fit = mirrored(root), {key: content for key, content in contents.items() if _is_fit(*key, content)}
    left_out = len(contents) - len(fit)
    for tenant, key_id, digest in pending_revocations(root):  # While the keys were being read Redis may have gone.
        if fit.get((tenant, key_id), "").startswith(digest):
            del fit[tenant, key_id]
    for key, content in fit.items():
        if held.get(key) != content:
            write_key_file(root.joinpath(*key), content)
    for key in held.keys() - fit.keys():
        root.joinpath(*key).unlink(missing_ok=True)
    return left_out


def _is_fit(tenant: str, key_id: str, content: str) -> bool:
    """Whether a gateway can read it: an invalid key file would keep the policy from being reloaded."""
    try:
        if any(name(given).startswith(".") for given in (tenant, key_id)):
            return False
        read_key_file(content)
    except InvalidValue:
        return False
    return True


def revoke_here(root: Path, tenant: str, key_id: str, digest: str) -> None:
    """Delete a key of the mirror, and have its deletion sent to Redis as soon as that is back."""
    write_key_file(root / REVOKED / tenant / key_id, digest)
    root.joinpath(tenant, key_id).unlink(missing_ok=True)


def pending_revocations(root: Path) -> Iterable[tuple[str, str, str]]:
    """Yield tenant, key id and digest of the revocations that Redis does not have yet."""
    for path in sorted((root / REVOKED).glob("*/*")):
        if not path.name.startswith("."):
            yield path.parent.name, path.name, path.read_text(encoding="utf-8").strip()


class KeyMirror:
    """Keeps the folder of one host equal to Redis. `run` runs until cancelled."""

    def __init__(self, place: RedisLocation, root: Path, log_event: LogFunction) -> None:
        self._place = place
        self._root = root
        self._log_event = log_event
        self._version: bytes | None = None
        self._problem = ""
        """Event that was logged last; empty while all is well."""

    @restarted("key mirror")
    async def run(self) -> None:
        """Look every `POLL_INTERVAL_S`, until cancelled."""
        while True:
            try:
                async with connect_redis(self._place, answer_s=ANSWER_S) as client:
                    keys = RedisKeys(client, self._place)
                    while True:
                        await self.look(keys)
                        await asyncio.sleep(POLL_INTERVAL_S)
            except Exception as error:  # noqa: BLE001 - Redis may be gone in any way
                raise_if_cancelled()
                if self._is_new("key_store_lost"):
                    self._log_event("warning", "key_store_lost", error=f"{type(error).__name__}: {error}"[:200])
            await asyncio.sleep(POLL_INTERVAL_S)

    async def look(self, keys: RedisKeys) -> None:
        """Send pending revocations, then take over what has changed."""
        for tenant, key_id, digest in await asyncio.to_thread(lambda: [*pending_revocations(self._root)]):
            await keys.revoke(tenant, key_id, digest)
            self._root.joinpath(REVOKED, tenant, key_id).unlink(missing_ok=True)
        version = await keys.version()
        if version is None:
            if self._is_new("key_store_empty"):
                self._log_event("warning", "key_store_empty")
            return
        if version != self._version:
            left_out = await asyncio.to_thread(mirror, self._root, await keys.all_keys())
            self._version = version
            if left_out:
                self._log_event("warning", "key_store_invalid_keys", keys=left_out)
        if self._problem:
            self._problem = ""
            self._log_event("info", "key_store_connected")

    def _is_new(self, problem: str) -> bool:
        """Note a problem. Returns whether it is another one than before: each is logged once."""
        is_new = self._problem != problem
        self._problem = problem
        return is_new
