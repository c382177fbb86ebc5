"""The truth table as text."""

from __future__ import annotations

from collections.abc import Sequence

from bench.truth.errors import BOUNDS, Row, median_error

NAMES = (*BOUNDS, "preemptions")

WIDTHS = {"ttft": 1000.0, "tpot": 1000.0}


def table(title: str, rows: Sequence[Row]) -> str:
    """Return one block: per workload the real figure, the simulated one's error and the engine's own."""
    lines = [title, f"{'':18}{'n':>4} " + "".join(f"{name:>22}" for name in NAMES)]
    lines += [_line(row) for row in rows]
    if rows:
        medians = "".join(f"{'':>9}{median_error(rows, name):>7.1%}{'':>6}" if name in BOUNDS else "" for name in NAMES)
        lines.append(f"{'median error':23}{medians}")
    return "\n".join(lines)


def _line(row: Row) -> str:
    cells = "".join(_cell(row, name) for name in NAMES)
    late = max(run.late_s for run in row.runs)
    client = max(run.client_share for run in row.runs)
    others = max(run.others_share for run in row.runs)
    return (
        f"{row.name:18}{row.requests:>4} {cells}  late {late * 1000:.0f} ms, client {client:.2f}, others {others:.2f}"
    )


def _cell(row: Row, name: str) -> str:
    real = row.real[name]
    if name == "preemptions":
        return f"{real:>10.0f} / {row.simulated[name]:<9.0f}"
    shown = real * WIDTHS.get(name.partition(" ")[0], 1.0)
    return f"{shown:>9.4g}{row.error(name):>+7.1%}{f'({row.own_error(name):.1%})':>6}"
