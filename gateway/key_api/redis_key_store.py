"""Keys in Redis behind the key API: each change is one script, made only if the key is as it was read.

Blocks, as `FolderKeyStore` does: call it in a thread. Each call opens a connection of its own; operators make few.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from errno import EHOSTUNREACH
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from redis.exceptions import RedisError

from gateway.identity.key_folder import PREFIX, RANDOM_BYTES, KeyFileEntry, key_content, key_entry
from gateway.identity.redis_keys import ABSENT, CHANGED, FULL, TAKEN, RedisKeys, mirrored, revoke_here
from gateway.key_api.key_store import (
    MAX_KEYS_PER_TENANT,
    CreatedKey,
    FolderKeyStore,
    KeyNotFound,
    StoredKey,
    TooManyKeys,
    VersionMismatch,
    stored_key,
)
from gateway.runtime.redis_client import connect_redis
from gateway.runtime.redis_location import RedisLocation
from tenancy.document import InvalidValue
from tenancy.policy import KeyFile
from tenancy.reading.auth import read_key_file
from tenancy.reading.fields import name

ANSWER_S = 2.0

CALL_S = 10.0

T = TypeVar("T")


class RedisKeyStore:
    """The keys of one Redis. `root`: the folder that mirrors them on this host."""

    def __init__(self, place: RedisLocation, root: Path) -> None:
        self._place = place
        self._root = root

    def list(self, tenant: str | None, after: tuple[str, str], limit: int) -> list[StoredKey]:
        """Return up to `limit` keys in order, behind `(tenant, key id)`; of one tenant or (None) of all."""

        async def listed(keys: RedisKeys) -> list[StoredKey]:
            found: list[StoredKey] = []
            for each in await keys.tenants() if tenant is None else [tenant]:
                if each < after[0]:
                    continue
                for key_id, content in sorted((await keys.keys_of(each)).items()):
                    if (each, key_id) > after:
                        found.append(stored_key(each, key_id, content))
                    if len(found) == limit:
                        return found
            return found

        return self._call(listed)

    def read(self, tenant: str, key_id: str) -> StoredKey:
        """Return one key. Raises `KeyNotFound`."""
        return stored_key(tenant, key_id, self._call(lambda keys: _found(keys, tenant, key_id)))

    def create(
        self,
        tenant: str,
        key_id: str | None,
        *,
        user: str | None,
        group: str | None,
        until_s: float,
        limits: Mapping[str, str],
    ) -> CreatedKey:
        """Create a key. Raises `InvalidValue`, also where the id is taken, `TooManyKeys`, and `OSError`."""
        found, content, secret = _fresh(key_id, user=user, group=group, until_s=until_s, limits=limits)
        self._change(tenant, (found, "", content))
        return CreatedKey(stored_key(tenant, found, content), secret)

    def rotate(self, tenant: str, key_id: str, version: str, until_s: float) -> CreatedKey:
        """Create a replacement, and have the old key end at `until_s`. Raises like `revoke`."""
        old = self._checked(tenant, key_id, version)
        entry = _valid(tenant, key_id, old)
        # The replacement ends with the old one where that had an end: a rotation prolongs and lifts nothing.
        kept: dict[str, Any] = {
            "user": entry.user,
            "group": entry.group,
            "until_s": entry.until_s,
            "limits": entry.limits,
        }
        found, content, secret = _fresh(None, **kept)
        ends_s = min(until_s, entry.until_s)
        ended = old if ends_s == inf else key_content(_digest(old), **kept | {"until_s": ends_s})
        self._change(tenant, (found, "", content), (key_id, old, ended))
        return CreatedKey(stored_key(tenant, found, content), secret)

    def limit(self, tenant: str, key_id: str, version: str, limits: Mapping[str, str]) -> StoredKey:
        """Replace the limits of a key. Raises like `revoke`, and `InvalidValue`."""
        old = self._checked(tenant, key_id, version)
        entry = _valid(tenant, key_id, old)
        content = key_content(_digest(old), user=entry.user, group=entry.group, until_s=entry.until_s, limits=limits)
        self._change(tenant, (key_id, old, content))
        return stored_key(tenant, key_id, content)

    def revoke(self, tenant: str, key_id: str, version: str) -> bool:
        """Delete a key. Returns False where Redis is away: it is revoked on this host, and elsewhere once it is back.

        Raises `KeyNotFound`, and `VersionMismatch` if it is not of this version.
        """
        try:
            self._change(tenant, (key_id, self._checked(tenant, key_id, version), ""))
        except ConnectionError:
            held = FolderKeyStore(self._root).read(tenant, key_id)
            if held.version != version:
                raise VersionMismatch from None
            revoke_here(self._root, tenant, key_id, _digest(mirrored_content(self._root, tenant, key_id)))
            return False
        return True

    def _checked(self, tenant: str, key_id: str, version: str) -> str:
        content = self._call(lambda keys: _found(keys, tenant, key_id))
        if stored_key(tenant, key_id, content).version != version:
            raise VersionMismatch
        return content

    def _change(self, tenant: str, *changes: tuple[str, str, str]) -> None:
        async def change(keys: RedisKeys) -> bytes:
            if await keys.version() is None:  # New, or it has lost its data: it begins with what this host has.
                await keys.fill(await asyncio.to_thread(mirrored, self._root))
            return await keys.change(tenant, MAX_KEYS_PER_TENANT, *changes)

        result = self._call(change)
        if result == TAKEN:
            raise InvalidValue(f"key `{tenant}/{changes[0][0]}` already exists")
        if result == CHANGED:
            raise VersionMismatch
        if result == ABSENT:
            raise KeyNotFound
        if result == FULL:
            raise TooManyKeys

    def _call(self, call: Callable[[RedisKeys], Awaitable[T]]) -> T:
        """Run a call on a connection of its own. Raises `ConnectionError` where Redis is away."""

        async def connected() -> T:
            async with asyncio.timeout(CALL_S), connect_redis(self._place, answer_s=ANSWER_S) as client:
                return await call(RedisKeys(client, self._place))

        try:
            return asyncio.run(connected())
        except (RedisError, OSError) as error:
            raise ConnectionError(EHOSTUNREACH, f"Redis: {type(error).__name__}") from None


async def _found(keys: RedisKeys, tenant: str, key_id: str) -> str:
    content = await keys.find(tenant, key_id)
    if content is None:
        raise KeyNotFound
    return content


def _fresh(key_id: str | None, **key_fields: Any) -> tuple[str, str, str]:
    """Return id, content and secret of a new key. Raises `InvalidValue`."""
    found = key_id or f"k{secrets.token_hex(4)}"
    if name(found).startswith("."):
        raise InvalidValue(f"`{found}` must not begin with a dot")
    secret = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    return found, key_content(sha256(secret.encode()).hexdigest(), **key_fields), secret


def _digest(content: str) -> str:
    return read_key_file(content)[0]


def _valid(tenant: str, key_id: str, content: str) -> KeyFileEntry:
    entry = key_entry(KeyFile(tenant, key_id, content))
    if entry.fault:
        raise InvalidValue(f"the content of the key {entry.fault}")
    return entry


def mirrored_content(root: Path, tenant: str, key_id: str) -> str:
    """Return the content of a key of the mirror."""
    return root.joinpath(tenant, key_id).read_text(encoding="utf-8")
