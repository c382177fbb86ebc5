"""The memory of supply decisions in a file: forecasts of weeks, and engine-hours of the day, survive a restart."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from supply.state import EMPTY_STATE, SupplyState, decode_state, encode_state

MAX_FILE_BYTES = 32 << 20


def read_state_file(path: Path) -> SupplyState:
    """Return the state of a file; an empty one where there is no file. Raises OSError, and ValueError if invalid."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"{path} has more than {MAX_FILE_BYTES} bytes")
        return decode_state(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return EMPTY_STATE


def write_state_file(path: Path, state: SupplyState) -> None:
    """Replace the file in one step. Raises OSError."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        fresh.write_text(encode_state(state), encoding="utf-8")
        fresh.replace(path)
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
