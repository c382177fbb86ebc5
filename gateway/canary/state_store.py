"""Where the state of canaries is kept, so that all workers and gateways have one verdict and a restart keeps it.

`FileStore` is for one host: a file that workers change in turn. `redis_store.py` is for all gateways of one Redis.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from gateway.runtime.files import replace_file
from routing.canary.verdict import CanaryState

MAX_BYTES = 1 << 20
"""A longer state was not written by a gateway."""

LOCK_WAIT_S, LOCK_RETRY_S = 1.0, 0.01
"""How long a change waits for that of another process, and between two attempts: one that is paused holds the lock."""

ChangeState = Callable[[CanaryState | None], CanaryState]
"""Takes the stored state, None where nothing is stored, and returns what is to be stored."""


class StateUnavailable(Exception):  # noqa: N818 - a state of things
    """The stored state could not be read or changed; the message says why."""


class CanaryStore(Protocol):
    """Keeps one state that several processes change."""

    async def update(self, change: ChangeState) -> CanaryState:
        """Change the stored state in one step, and return what is stored then. Raises `StateUnavailable`."""
        ...


class MemoryStore:
    """Of a gateway without siblings that keeps nothing."""

    def __init__(self) -> None:
        self._state: CanaryState | None = None

    async def update(self, change: ChangeState) -> CanaryState:
        """Change the state."""
        self._state = change(self._state)
        return self._state


class FileStore:
    """A file; its changes are made under a lock beside it, in a thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = file.with_name(f"{file.name}.lock")

    async def update(self, change: ChangeState) -> CanaryState:
        """Change the file. Raises `StateUnavailable` where that fails, or another process holds the lock too long."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + LOCK_WAIT_S
        try:
            while True:
                try:
                    return await asyncio.to_thread(self._update, change)
                except BlockingIOError as error:
                    if loop.time() >= until_s:
                        raise StateUnavailable(f"{self._file}: another process keeps its lock") from error
                await asyncio.sleep(LOCK_RETRY_S)
        except OSError as error:
            raise StateUnavailable(f"{self._file}: {error.strerror or error}") from error
        except (msgspec.MsgspecError, RecursionError) as error:
            raise StateUnavailable(
                f"{self._file}: cannot be read as a state of canaries ({error}); remove it to start without one"
            ) from error

    def _update(self, change: ChangeState) -> CanaryState:
        try:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            # On a disk that has become read-only an old verdict still holds: the file is replaced as a whole, so that
            # reading it needs no lock.
            stored = self._read()
            if stored is None or change(stored) != stored:
                raise
            return stored
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stored = self._read()
            changed = change(stored)
            if changed != stored:
                replace_file(self._file, msgspec.json.encode(changed))
            return changed
        finally:
            os.close(descriptor)

    def _read(self) -> CanaryState | None:
        try:
            with self._file.open("rb") as file:
                return msgspec.json.decode(file.read(MAX_BYTES), type=CanaryState)
        except FileNotFoundError:
            return None
