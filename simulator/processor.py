"""How much processor time programs have used, where the system tells (Linux): was the machine the bottleneck?"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path


class Meter:
    """Counts the processor time of some programs and our own from when it was made."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = (os.getpid(), *pids)
        self._began = time.monotonic()
        self._used_s = used_s(self._pids)

    def busy(self) -> float | None:
        """The share of all cores' time since then that they used; None where the system does not tell."""
        now_s = used_s(self._pids)
        if self._used_s is None or now_s is None:
            return None
        cores = len(os.sched_getaffinity(0))
        return (now_s - self._used_s) / (time.monotonic() - self._began) / cores


def used_s(pids: Iterable[int]) -> float | None:
    """Seconds of processor time of these programs together; None where the system does not tell."""
    try:
        ticks = sum(_ticks(Path(f"/proc/{pid}/stat").read_text(encoding="ascii")) for pid in pids)
    except (OSError, ValueError, IndexError):
        return None
    return ticks / os.sysconf("SC_CLK_TCK")


def _ticks(stat: str) -> int:
    """User and system ticks; the fields are counted from behind the name, which may hold anything."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
