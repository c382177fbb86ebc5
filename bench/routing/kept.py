"""The tables that were printed last, read again, so that a part of them can be played again and the rest kept.

A row is known by its name within its table, a table by its load and where it was played. What is read back is rounded
as printed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from bench.routing.rows import Row, tabulate

WHERES = ("virtual", "live", "outage")
KEPT = "Rows of an earlier run: "


@dataclass(frozen=True, slots=True)
class Table:
    """One load in one place. `note` stands below it."""

    load: str
    where: str
    head: str
    rows: tuple[Row, ...]
    note: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What it is known by."""
        return self.load, self.where

    def __str__(self) -> str:
        return "\n".join(part for part in (f"{self.where}: {self.head}", tabulate(self.rows), self.note) if part)


def read_tables(text: str, loads: Sequence[str]) -> list[Table]:
    """All tables of a printed page; other lines are ignored."""
    return [table for block in text.split("\n\n") if (table := _read(block.strip("\n").splitlines(), loads))]


def merged(old: Sequence[Table], new: Sequence[Table]) -> list[Table]:
    """New tables over old ones, row by row, in the order of the old."""
    tables = {table.key: table for table in old}
    for table in new:
        before = tables.get(table.key)
        tables[table.key] = _over(before, table) if before else table
    return sorted(tables.values(), key=lambda table: WHERES.index(table.where))


def _over(before: Table, after: Table) -> Table:
    played = {row.name: row for row in after.rows}
    rows = [played.pop(row.name, row) for row in before.rows]
    stayed = [row.name for row in rows if row not in after.rows]
    if not stayed:
        return after
    notes = [f"{KEPT}{'; '.join(stayed)}."]
    return replace(after, rows=(*rows, *played.values()), note="\n".join([after.note, *notes] if after.note else notes))


def _read(lines: Sequence[str], loads: Sequence[str]) -> Table | None:
    if len(lines) < 3 or not lines[1].startswith("  "):
        return None
    where, colon, head = lines[0].partition(": ")
    load = next((load for load in loads if head.startswith(load)), None)
    if not colon or where not in WHERES or load is None:
        return None
    rows = []
    for line in lines[2:]:
        row = _row(line)
        if row is None:
            break
        rows.append(row)
    note = "\n".join(line for line in lines[2 + len(rows) :] if not line.startswith(KEPT))
    return Table(load, where, head, tuple(rows), note)


def _row(line: str) -> Row | None:
    name, *cells = re.split(r"\s{2,}", line.strip())
    if len(cells) != len(fields(Row)) - 1:
        return None
    try:
        row = Row(name, *map(float, cells))
    except ValueError:
        return None
    return replace(row, tpot_p50=row.tpot_p50 / 1000, tpot_p99=row.tpot_p99 / 1000)
