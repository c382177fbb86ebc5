"""What a process tree has used, from the kernel's own books: CPU to the nanosecond, memory by the page.

CPU is the time the scheduler gave to its threads, so a noisy neighbour costs nothing here. Independent of gateways.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    pids = [pid]
    for known in pids:
        for task in _tasks(known):
            pids += [int(child) for child in _read(task / "children").split()]
    return pids


class CpuBook:
    """CPU of a process tree. Look at it now and then: what a thread did between the last look and its end is lost."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._used_of: dict[str, int] = {}

    def used_s(self) -> float:
        """Seconds used up to now by all threads ever observed."""
        for pid in tree(self._pid):
            for task in _tasks(pid):
                columns = _read(task / "schedstat").split()
                if columns:
                    self._used_of[task.name] = int(columns[0])
        return sum(self._used_of.values()) / 1e9


def ticks_s(pid: int) -> float:
    """The same by the kernel's coarse books, which remember threads that have ended: to check against."""
    fields = [_read(PROC / str(one) / "stat").rpartition(")")[2].split() for one in tree(pid)]
    return sum(int(each[11]) + int(each[12]) for each in fields if each) * TICK_S


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes: all of them, and with shared pages counted by share."""

    rss: int
    pss: int


def memory(pid: int) -> Memory:
    """What a process tree holds now."""
    rss = pss = 0
    for one in tree(pid):
        for line in _read(PROC / str(one) / "smaps_rollup").splitlines():
            name, _, rest = line.partition(":")
            if name == "Rss":
                rss += int(rest.split()[0]) << 10
            elif name == "Pss":
                pss += int(rest.split()[0]) << 10
    return Memory(rss, pss)


def _tasks(pid: int) -> list[Path]:
    try:
        return list((PROC / str(pid) / "task").iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # It has ended meanwhile.
