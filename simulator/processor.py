"""How busy the machine was, where the system tells (Linux): was it the bottleneck, by our doing or by others'?"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path


class Meter:
    """Counts the processor time of some programs, our own, and everybody's, from when it was made."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = (os.getpid(), *pids)
        self._began_s = time.monotonic()
        self._used_s = used_s(self._pids)
        self._machine = machine_ticks()

    def busy(self) -> float | None:
        """The share of all cores' time since then that was used, by us or by all; None where the system tells neither.

        Both are looked at: in a container the system may tell of a machine larger than what we may use.
        """
        shares = [share for share in (self._by_us(), self._by_all()) if share is not None]
        return max(shares, default=None)

    def _by_us(self) -> float | None:
        now_s = used_s(self._pids)
        if self._used_s is None or now_s is None:
            return None
        cores = len(os.sched_getaffinity(0))
        return (now_s - self._used_s) / (time.monotonic() - self._began_s) / cores

    def _by_all(self) -> float | None:
        now = machine_ticks()
        if self._machine is None or now is None or now[1] <= self._machine[1]:
            return None
        return (now[0] - self._machine[0]) / (now[1] - self._machine[1])


def used_s(pids: Iterable[int]) -> float | None:
    """Seconds of processor time of these programs together; None where the system does not tell."""
    try:
        ticks = sum(_ticks(Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")) for pid in pids)
    except (OSError, ValueError, IndexError):
        return None
    return ticks / os.sysconf("SC_CLK_TCK")


def machine_ticks() -> tuple[int, int] | None:
    """Ticks of all cores that were used, and all there were; None where the system does not tell."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
        ticks = [int(field) for field in first[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def _ticks(stat: str) -> int:
    """User and system ticks; the fields are counted from behind the name, which may hold anything."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
