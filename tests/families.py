"""Who was started by whom: a program that a test has started, with all that it started in its turn."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def family_of(pid: int) -> list[int]:
    """A process, its children, and theirs: these may be in sessions of their own, and would outlive it.

    By everybody's parent: what the kernel lists as a task's children may lack some where others come and go.
    """
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    family = [pid]
    for member in family:  # Grows as it goes.
        family += children.get(member, ())
    return family
