"""A line of the table: one contender on one load, its figures, and how they are put to paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from statistics import median

from simulator.report import RoutingReport


@dataclass(frozen=True, slots=True)
class Row:
    """Times in engine seconds. `failed` is a count."""

    name: str
    hit: float
    ttft_mean: float
    ttft_p50: float
    ttft_p90: float
    ttft_p95: float
    ttft_p99: float
    wait_mean: float
    wait_p90: float
    wait_p99: float
    tpot_p50: float
    tpot_p99: float
    within_slo: float
    """Share of requests with TTFT within 2 s and TPOT within 50 ms."""
    imbalance: float
    failed: float


def row_of(name: str, report: RoutingReport) -> Row:
    """The figures of a report that are compared."""
    ttft, wait, tpot = report.ttft_s, report.wait_s, report.tpot_s
    return Row(
        name,
        hit=report.hit_ratio,
        ttft_mean=ttft.mean,
        ttft_p50=ttft.p50,
        ttft_p90=ttft.p90,
        ttft_p95=ttft.p95,
        ttft_p99=ttft.p99,
        wait_mean=wait.mean,
        wait_p90=wait.p90,
        wait_p99=wait.p99,
        tpot_p50=tpot.p50,
        tpot_p99=tpot.p99,
        within_slo=report.within_slo,
        imbalance=report.imbalance,
        failed=report.failed,
    )


def middle(rows: Sequence[Row]) -> Row:
    """The median of each figure by itself."""
    columns = list(zip(*(astuple(row)[1:] for row in rows), strict=True))
    return Row(rows[0].name, *map(median, columns))


Cell = Callable[[Row], str]

COLUMNS: tuple[tuple[str, Cell], ...] = (
    ("", lambda row: row.name),
    ("hit", lambda row: f"{row.hit:.3f}"),
    ("TTFT mean", lambda row: f"{row.ttft_mean:.2f}"),
    ("p50", lambda row: f"{row.ttft_p50:.3f}"),
    ("p90", lambda row: f"{row.ttft_p90:.2f}"),
    ("p95", lambda row: f"{row.ttft_p95:.2f}"),
    ("p99", lambda row: f"{row.ttft_p99:.2f}"),
    ("wait mean", lambda row: f"{row.wait_mean:.2f}"),
    ("p90", lambda row: f"{row.wait_p90:.2f}"),
    ("p99", lambda row: f"{row.wait_p99:.2f}"),
    ("TPOT p50", lambda row: f"{row.tpot_p50 * 1000:.1f}"),
    ("p99", lambda row: f"{row.tpot_p99 * 1000:.0f}"),
    ("in SLO", lambda row: f"{row.within_slo:.3f}"),
    ("imbalance", lambda row: f"{row.imbalance:.2f}"),
    ("failed", lambda row: f"{row.failed:.0f}"),
)


def tabulate(rows: Sequence[Row]) -> str:
    """Columns aligned; seconds, TPOT in milliseconds."""
    cells = [[head for head, _ in COLUMNS], *([cell(row) for _, cell in COLUMNS] for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if at == 0 else f"{cell:>{width}}"
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )


FIGURES = tuple(field.name for field in fields(Row) if field.name != "name")
