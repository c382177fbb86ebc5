"""A report as lines of text for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.report import Report, RoutingReport

Cell = Callable[[RoutingReport], str]

COLUMNS: tuple[tuple[str, Cell], ...] = (
    ("routing", lambda one: one.routing),
    ("warm", lambda one: f"{one.hit_ratio:.1%}"),
    ("TTFT mean", lambda one: _seconds(one.ttft_s.mean)),
    ("p50", lambda one: _seconds(one.ttft_s.p50)),
    ("p90", lambda one: _seconds(one.ttft_s.p90)),
    ("p95", lambda one: _seconds(one.ttft_s.p95)),
    ("p99", lambda one: _seconds(one.ttft_s.p99)),
    ("wait mean", lambda one: _seconds(one.wait_s.mean)),
    ("p99", lambda one: _seconds(one.wait_s.p99)),
    ("TPOT p50", lambda one: f"{one.tpot_s.p50 * 1000:.1f} ms"),
    ("p99", lambda one: f"{one.tpot_s.p99 * 1000:.1f} ms"),
    ("imbalance", lambda one: f"{one.imbalance:.2f}"),
    ("warm error", lambda one: f"{one.foresight.warm_error:.1%}" if one.foresight else "-"),
    ("failed", lambda one: str(one.failed)),
)


def tabulate(report: Report) -> str:
    """One line a routing, columns aligned, names to the left and figures to the right."""
    rows = [[head for head, _ in COLUMNS], *([cell(one) for _, cell in COLUMNS] for one in report.routings)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS))]
    lines = [_line(row, widths) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *figures = (
        f"{cell:<{width}}" if at == 0 else f"{cell:>{width}}"
        for at, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([first, *figures])


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds else "-"


def explain_failures(report: Report) -> str:
    """What failed and why, a line a routing; empty where nothing did."""
    return "\n".join(
        f"{one.routing}: {count} failed: {why}"
        for one in report.routings
        for why, count in sorted(one.failures.items())
    )
