"""What issue 6 asks of splitting, one line each: wanted beside measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bench.pd.figures import Figures
from bench.pd.ways import ALWAYS, CHOICE, COLOCATED, KNOWING, SOFT
from bench.pd.workloads import ENGINES, Workload
from bench.target import Target

OF_KNOWING = 0.95
OF_BETTER = 1.05
CHANGES_A_TURN = ENGINES


def targets_of(workload: Workload, rows: Mapping[str, Figures]) -> Iterator[Target]:
    """All that is wanted on one workload."""
    if workload.is_hour:
        return _hour(workload, rows)
    return _shifting(workload, rows) if workload.shifts else _steady(workload, rows)


def fixed_splits(rows: Mapping[str, Figures]) -> dict[str, Figures]:
    """Those that split always, and always alike."""
    return {name: row for name, row in rows.items() if name.endswith("D") or name == ALWAYS}


def _hour(workload: Workload, rows: Mapping[str, Figures]) -> Iterator[Target]:
    name, ours = workload.name, rows[SOFT]
    best = max(row.goodput for row in fixed_splits(rows).values())
    yield Target(f"{name}: soft roles, goodput of the best fixed split's", best, ours.goodput, is_minimum=True)
    yield Target(f"{name}: changes of role a phase", CHANGES_A_TURN, ours.changes / len(workload.phases))


def _shifting(workload: Workload, rows: Mapping[str, Figures]) -> Iterator[Target]:
    name, ours = workload.name, rows[SOFT]
    knowing = max(row.goodput for way, row in rows.items() if way.startswith(KNOWING))
    yield Target(
        f"{name}: soft roles, goodput by the clairvoyant's", OF_KNOWING, ours.goodput / knowing, is_minimum=True
    )
    best = max(row.goodput for row in fixed_splits(rows).values())
    yield Target(f"{name}: soft roles, goodput beyond the best fixed split's", best, ours.goodput, is_minimum=True)
    alone = rows[COLOCATED].goodput
    yield Target(f"{name}: soft roles, goodput beyond colocated", alone, ours.goodput, is_minimum=True)
    yield Target(f"{name}: engines that went back within a minute", 0, ours.flaps)
    yield Target(f"{name}: changes of role a phase", CHANGES_A_TURN, ours.changes / len(workload.phases))


def _steady(workload: Workload, rows: Mapping[str, Figures]) -> Iterator[Target]:
    name, ours, never = workload.name, rows[CHOICE], rows[COLOCATED]
    always = max(fixed_splits(rows).values(), key=lambda row: (row.goodput, -row.ttft_p50))
    for point in ("ttft_p50", "ttft_p90", "ttft_p99"):
        better = min(getattr(always, point), getattr(never, point))
        yield Target(f"{name}: choice, {point} by the better of both", OF_BETTER, getattr(ours, point) / better)
    yield Target(f"{name}: choice, goodput", max(always.goodput, never.goodput), ours.goodput, is_minimum=True)
