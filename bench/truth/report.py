"""The truth table as text."""

from __future__ import annotations

from collections.abc import Sequence

from bench.truth.errors import BOUNDS, Row, median_error

NAMES = (
    *("ttft p50", "ttft p90", "ttft p99", "tpot p50", "tpot p90", "tpot p99"),
    *("throughput", "cached", "preemptions"),
)

SCALES = {"ttft": 1000.0, "tpot": 1000.0}

WIDTH = 19


def table(title: str, rows: Sequence[Row]) -> str:
    """Return one block: per workload the real figure, the simulated one's error and the engine's own, in percent."""
    lines = [title, f"{'':17}{'n':>4}" + "".join(f"{name:>{WIDTH}}" for name in NAMES)]
    lines += [f"{row.name:17}{row.requests:>4}" + "".join(_cell(row, name) for name in NAMES) for row in rows]
    if rows:
        medians = "".join(f"{100 * median_error(rows, name):>{WIDTH - 6}.1f}{'':6}" for name in NAMES if name in BOUNDS)
        lines += [f"{'median error, %':21}{medians}", _conditions(rows)]
    return "\n".join(lines)


def _conditions(rows: Sequence[Row]) -> str:
    runs = [run for row in rows for run in row.runs]
    others = sorted(run.others_share for run in runs)
    return (
        f"latest request {max(run.late_s for run in runs) * 1000:.0f} ms after it was due; client at most "
        f"{max(run.client_share for run in runs):.2f} of a core; others {others[0]:.2f} to {others[-1]:.2f} of a core"
    )


def _cell(row: Row, name: str) -> str:
    real = row.real[name]
    if name == "preemptions":
        return f"{f'{real:.0f} / {row.simulated[name]:.0f}':>{WIDTH}}"
    shown = real * SCALES.get(name.partition(" ")[0], 1.0)
    own = f"({100 * row.own_error(name):.1f})"
    return f"{f'{shown:.4g}':>{WIDTH - 13}}{100 * row.error(name):>+7.1f}{own:>6}"
