"""Writes files so that a reader sees the old one or the new one."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(file: Path, body: bytes) -> None:
    """Write a file beside another of that name and move it there, readable by its owner alone. Raises OSError."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        # Of a process that was killed, or a link that someone else has put there: it is not written through.
        beside.unlink(missing_ok=True)
        opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(opened, "wb") as writing:
            writing.write(body)
            writing.flush()
            os.fsync(writing.fileno())
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
