"""Keys in a folder, with versions: a change names the version that it was decided on, so that no update is lost.

Changes of all processes on the folder exclude each other by a lock file. Blocks: call it in a thread.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from pathlib import Path
from threading import Event
from typing import Protocol

from gateway.identity.key_folder import KeyFileEntry, KeyFolder, key_entry
from tenancy.document import InvalidValue
from tenancy.policy import KeyFile

LOCK_FILE = ".key-api.lock"
"""Names that begin with a dot are not tenants."""


LOCK_TIMEOUT_S = 5.0
"""Seconds after which a change fails because another process holds the lock."""

LOCK_POLL_S = 0.02

MAX_KEYS_PER_TENANT = 10_000
"""Files of one tenant: a tenant-admin must not fill the folder that gateways read whole."""


class TooManyKeys(Exception):  # noqa: N818 - an answer for the caller
    """The tenant has as many keys as it may have."""


class KeyNotFound(Exception):  # noqa: N818 - an answer for the caller
    """The key does not exist."""


class VersionMismatch(Exception):  # noqa: N818 - an answer for the caller
    """The key was changed since its version was read."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One key of the folder, without its secret."""

    entry: KeyFileEntry
    version: str
    """Digest of its file."""


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new key; `secret` is shown once and stored nowhere."""

    stored: StoredKey
    secret: str


def stored_key(tenant: str, key_id: str, content: str) -> StoredKey:
    """Return a key by the content of its file."""
    return StoredKey(key_entry(KeyFile(tenant, key_id, content)), sha256(content.encode()).hexdigest()[:32])


class KeyStore(Protocol):
    """Where keys are kept. Calls block; those that change a key name the version that they were decided on."""

    def list(self, tenant: str | None, after: tuple[str, str], limit: int) -> list[StoredKey]:
        """Return up to `limit` keys in order, behind `(tenant, key id)`; of one tenant or (None) of all."""
        ...

    def read(self, tenant: str, key_id: str) -> StoredKey:
        """Return one key. Raises `KeyNotFound`."""
        ...

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
        ...

    def rotate(self, tenant: str, key_id: str, version: str, until_s: float) -> CreatedKey:
        """Create a replacement, and have the old key end at `until_s`."""
        ...

    def limit(self, tenant: str, key_id: str, version: str, limits: Mapping[str, str]) -> StoredKey:
        """Replace the limits of a key."""
        ...

    def revoke(self, tenant: str, key_id: str, version: str) -> bool:
        """Delete a key. Returns whether that holds everywhere; False: on this host, and elsewhere later."""
        ...


class FolderKeyStore:
    """The keys of one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = KeyFolder(root)

    def list(self, tenant: str | None, after: tuple[str, str], limit: int) -> list[StoredKey]:
        """Return up to `limit` keys in order, behind `(tenant, key id)`; of one tenant or (None) of all."""
        found: list[StoredKey] = []
        for folder in sorted(self._root.iterdir()) if tenant is None else [self._root / tenant]:
            if folder.name.startswith(".") or not folder.is_dir() or folder.name < after[0]:
                continue
            for path in sorted(folder.iterdir()):
                if (folder.name, path.name) <= after or path.name.startswith("."):
                    continue
                try:
                    found.append(self.read(folder.name, path.name))
                except KeyNotFound:
                    continue  # revoked meanwhile
                if len(found) == limit:
                    return found
        return found

    def read(self, tenant: str, key_id: str) -> StoredKey:
        """Return one key. Raises `KeyNotFound`."""
        try:
            self._folder.find(tenant, key_id)
            return stored_key(tenant, key_id, self._folder.content(tenant, key_id))
        except InvalidValue:
            raise KeyNotFound from None

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
        with self._locked():
            self._check_room(tenant)
            found, secret = self._folder.add(tenant, key_id, user=user, group=group, until_s=until_s, limits=limits)
            return CreatedKey(self.read(tenant, found), secret)

    def rotate(self, tenant: str, key_id: str, version: str, until_s: float) -> CreatedKey:
        """Create a replacement, and have the old key end at `until_s`. Raises like `revoke`."""
        with self._locked():
            entry = self._checked(tenant, key_id, version).entry
            if entry.fault:
                raise InvalidValue(f"the file of the key {entry.fault}")
            self._check_room(tenant)
            # The replacement ends with the old one where that had an end: a rotation prolongs and lifts nothing.
            found, secret = self._folder.add(
                *(tenant, None), user=entry.user, group=entry.group, until_s=entry.until_s, limits=entry.limits
            )
            if until_s < inf:
                self._folder.expire(tenant, key_id, until_s)
            return CreatedKey(self.read(tenant, found), secret)

    def limit(self, tenant: str, key_id: str, version: str, limits: Mapping[str, str]) -> StoredKey:
        """Replace the limits of a key. Raises like `revoke`, and `InvalidValue`."""
        with self._locked():
            self._checked(tenant, key_id, version)
            self._folder.limit(tenant, key_id, limits)
            return self.read(tenant, key_id)

    def revoke(self, tenant: str, key_id: str, version: str) -> bool:
        """Delete a key. Returns True. Raises `KeyNotFound`, and `VersionMismatch` if it is not of this version."""
        with self._locked():
            self._checked(tenant, key_id, version)
            self._folder.remove(tenant, key_id)
        return True

    def _check_room(self, tenant: str) -> None:
        """Check that the tenant may have one key more. Raises `TooManyKeys`."""
        folder = self._root / tenant
        if folder.is_dir() and sum(1 for _ in folder.iterdir()) >= MAX_KEYS_PER_TENANT:
            raise TooManyKeys

    def _checked(self, tenant: str, key_id: str, version: str) -> StoredKey:
        stored = self.read(tenant, key_id)
        if stored.version != version:
            raise VersionMismatch
        return stored

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self._root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            until_s = time.monotonic() + LOCK_TIMEOUT_S
            while not _takes_lock(fd):
                if time.monotonic() >= until_s:
                    raise TimeoutError
                Event().wait(LOCK_POLL_S)
            yield
        finally:
            os.close(fd)


def _takes_lock(fd: int) -> bool:
    """Lock a file, unless another process has locked it. Returns whether it is locked now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
