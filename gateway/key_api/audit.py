"""The audit log of the key API: a JSON line before and after each change, and one for each denial, appended and synced.

Writing blocks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from gateway.key_api.actors import Actor
from gateway.runtime.events import format_timestamp

MAX_DENIALS = 100
"""Denials that are written at once."""

DENIALS_PER_S = 1.0
"""Denials that are written per second beyond it."""


class AuditLog:
    """Appends to one file; nothing is ever rewritten."""

    def __init__(self, path: Path, wall_clock: Callable[[], float]) -> None:
        self._path = path
        self._wall_clock = wall_clock

    def write(
        self,
        actor: Actor | None,
        action: str,
        result: str,
        *,
        tenant: str | None,
        key_id: str | None,
        change: str | None = None,
        **more: object,
    ) -> None:
        """Append one line. `change` ties the two lines of one change together. Raises `OSError`.

        `actor`: None if it is not identified. `more`: further fields of the line.
        """
        line = {
            "timestamp": format_timestamp(self._wall_clock()),
            "change": change,
            "actor": None if actor is None else actor.name,
            "role": None if actor is None else actor.role.value,
            "action": action,
            "tenant": tenant,
            "key_id": key_id,
            "result": result,
            **more,
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


class DenialBudget:
    """Bounds the lines of denials: a caller without a role must not fill the disk."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: in seconds, never decreasing."""
        self._clock = clock
        self._room = float(MAX_DENIALS)
        self._filled_s = clock()
        self._left_out = 0

    def take(self) -> int | None:
        """Return how many denials were left out since the last line; None if this one is left out too."""
        now_s = self._clock()
        self._room = min(MAX_DENIALS, self._room + (now_s - self._filled_s) * DENIALS_PER_S)
        self._filled_s = now_s
        if self._room < 1.0:
            self._left_out += 1
            return None
        self._room -= 1.0
        left_out, self._left_out = self._left_out, 0
        return left_out
