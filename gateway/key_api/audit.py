"""The audit log of the key API: one JSON line before each change and one after it, appended and synced. Blocks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from gateway.key_api.actors import Actor
from gateway.runtime.events import format_timestamp


class AuditLog:
    """Appends to one file; nothing is ever rewritten."""

    def __init__(self, path: Path, wall_clock: Callable[[], float]) -> None:
        self._path = path
        self._wall_clock = wall_clock

    def write(
        self, actor: Actor, action: str, result: str, *, tenant: str, key_id: str | None, change: str | None
    ) -> None:
        """Append one line. `change` ties the two lines of one change together. Raises `OSError`."""
        line = {
            "timestamp": format_timestamp(self._wall_clock()),
            "change": change,
            "actor": actor.name,
            "role": actor.role.value,
            "action": action,
            "tenant": tenant,
            "key_id": key_id,
            "result": result,
        }
        # Opened for each line, so that a rotated file is left alone.
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            content = msgspec.json.encode(line) + b"\n"
            if os.write(fd, content) != len(content):
                raise OSError(f"{self._path} takes no whole line")
            os.fsync(fd)
        finally:
            os.close(fd)
