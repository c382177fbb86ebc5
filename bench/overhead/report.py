"""The table and the verdict: medians over rounds, ratios to floor and rival, what is wanted beside what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

OURS, OPEN, FLOOR, RIVAL = "hearth", "hearth-open", "nginx", "smg"


@dataclass(frozen=True, slots=True)
class Column:
    """One quantity. `digits` after the point."""

    key: str
    head: str
    digits: int = 1
    has_ratio: bool = True


UNARY, LARGE, PACED, FAST, MANY, UNARY_SATURATED = "unary", "large", "paced", "fast", "many", "whole"
RSS, PER_STREAM, ADDED_P50, ADDED_P99 = "rss", "per_stream", "added_p50", "added_p99"

COLUMNS = (
    Column(UNARY, "1.4 KB unary, us"),
    Column(LARGE, "128 KB unary, us"),
    Column(PACED, "1.4 KB at 400/s, us"),
    Column(FAST, "chunk, us (100 x 10 ms)", 2),
    Column(MANY, "chunk, us (500 x 50 ms)", 2),
    Column(UNARY_SATURATED, "same, with begin and end", 2),
    Column(ADDED_P50, "added TTFT p50, ms", 2, has_ratio=False),
    Column(ADDED_P99, "added TTFT p99, ms", 2, has_ratio=False),
    Column(RSS, "RSS, MB", 0, has_ratio=False),
    Column(PER_STREAM, "KB per idle stream", 1, has_ratio=False),
)

Figures = Mapping[tuple[str, str], Sequence[float]]
"""(gateway, quantity) to what each round measured."""


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that is wanted, and what was found; None where it was not measured."""

    wanted: str
    limit: float
    found: float | None
    unit: str = ""

    @property
    def is_met(self) -> bool:
        return self.found is not None and self.found <= self.limit

    def __str__(self) -> str:
        verdict = "ok   " if self.is_met else "SHORT" if self.found is not None else "-----"
        found = "not measured" if self.found is None else f"found {self.found:.2f}"
        return f"{verdict} {self.wanted}: at most {self.limit:g} {self.unit}".rstrip() + f", {found}"


def table(figures: Figures, names: Sequence[str]) -> str:
    """Gateways as lines; after each figure its ratio to the floor."""
    rows = [["gateway", *(column.head for column in COLUMNS)]]
    rows += [[name, *(_cell(figures, name, column) for column in COLUMNS)] for name in names]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]])


def targets(figures: Figures, growth: float | None, fault_count: int) -> list[Target]:
    """The targets of the data plane."""

    def ratio(key: str, other: str, ours: str = OURS) -> float | None:
        own, theirs = middle(figures, ours, key), middle(figures, other, key)
        return None if own is None or theirs is None else own / theirs

    return [
        Target("unary 1.4 KB, CPU against smg", 1.0, ratio(UNARY, RIVAL)),
        Target("unary 1.4 KB without a policy, CPU against smg", 0.65, ratio(UNARY, RIVAL, OPEN)),
        Target("unary 128 KB, CPU against smg", 0.6, ratio(LARGE, RIVAL)),
        Target("streamed chunk (100 x 10 ms), CPU against nginx", 1.25, ratio(FAST, FLOOR)),
        Target("streamed chunk (100 x 10 ms), CPU against smg", 0.95, ratio(FAST, RIVAL)),
        Target("streamed chunk (500 x 50 ms), CPU against nginx", 1.25, ratio(MANY, FLOOR)),
        Target("streamed chunk (500 x 50 ms), CPU against smg", 0.95, ratio(MANY, RIVAL)),
        Target("memory per open idle stream", 30.0, middle(figures, OURS, PER_STREAM), "KB"),
        Target("growth of RSS over the soak", 5.0, growth, "%"),
        Target("added TTFT at 100 req/s, p50", 1.0, middle(figures, OURS, ADDED_P50), "ms"),
        Target("added TTFT at 100 req/s, p99", 5.0, middle(figures, OURS, ADDED_P99), "ms"),
        Target("answers of ours that were not whole", 0, fault_count),
    ]


def middle(figures: Figures, name: str, key: str) -> float | None:
    """The median over rounds."""
    measured = figures.get((name, key))
    return median(measured) if measured else None


def _cell(figures: Figures, name: str, column: Column) -> str:
    measured = middle(figures, name, column.key)
    if measured is None:
        return "-"
    shown = f"{measured:.{column.digits}f}"
    floor = middle(figures, FLOOR, column.key)
    return f"{shown} ({measured / floor:.2f})" if column.has_ratio and floor else shown
