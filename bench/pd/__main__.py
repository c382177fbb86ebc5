"""Plays workloads in every way, prints a table and one line for each thing that issue 6 wants.

    python -m bench.pd [--seeds N] [--quick] [--only steady | shifting] [--jobs N] [--keep FILE]

Needs the recorded traces in the folder that TRACES names. Exit status 1 where something falls short.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from bench.pd.figures import Figures, middle
from bench.pd.targets import fixed_splits, targets_of
from bench.pd.ways import Way, choice_way, fixed_ways, knowing_ways, play_way, soft_way
from bench.pd.workloads import ENGINES, Workload, alone, shifting, steady
from simulator.trace_formats import TraceFault

METHOD = f"""\
Virtual time: the real spine, router and keeper of roles before {ENGINES} simulated engines, transfers over a shared
200 Gb/s wire each. kP:mD: k engines prefill everything, m decode everything. colocated: each engine does both, and
none hands over. clairvoyant: of each kind of phase one of the two fixed splits that are best for it by itself, changed
at the very turn. goodput: first token and pace as promised, over offered. Medians of seeds.\
"""

HEAD = ("way", "goodput", "TTFT p50", "p90", "p99", "TPOT p50", "p99", "split", "changes")

REQUESTS, QUICK_REQUESTS = 1_500, 600


class Bench:
    """One run of it."""

    def __init__(self, pool: ProcessPoolExecutor, seeds: Sequence[int]) -> None:
        self._pool = pool
        self._seeds = seeds

    def play(self, ways: Iterable[Way], workload: Workload) -> dict[str, Figures]:
        """Each way over all seeds."""
        started = {way.name: [self._pool.submit(play_way, way, workload, seed) for seed in self._seeds] for way in ways}
        return {name: middle([run.result() for run in runs]) for name, runs in started.items()}

    def shifting(self, workload: Workload) -> dict[str, Figures]:
        """Fixed ways and ours, and those who knew which fixed way is best for what."""
        rows = self.play([*fixed_ways(), soft_way()], workload)
        kinds = dict.fromkeys(kind for _, kind in workload.phases)
        best = {kind: self._best_splits(kind, workload) for kind in kinds}
        return {**rows, **self.play(knowing_ways(best, workload), workload)}

    def _best_splits(self, kind: str, workload: Workload) -> list[int]:
        """The two best for one kind of traffic by itself, by how many prefill."""
        splits = fixed_splits(self.play(fixed_ways(), alone(kind, workload, seed=1)))
        best = sorted(splits, key=lambda name: splits[name].goodput, reverse=True)[:2]
        return [int(name.partition("P")[0]) for name in best]

    def steady(self, workload: Workload) -> dict[str, Figures]:
        """Never, always, and as it pays."""
        return self.play([*fixed_ways(), choice_way()], workload)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    told, is_met = [_head(options.seeds), METHOD], True
    with ProcessPoolExecutor(options.jobs) as pool:
        bench = Bench(pool, range(options.seeds))
        try:
            for workload in _workloads(options):
                rows = bench.shifting(workload) if workload.shifts else bench.steady(workload)
                targets = list(targets_of(workload, rows))
                is_met = is_met and all(target.is_met for target in targets)
                told += [_table(workload, rows), "\n".join(map(str, targets))]
                print("\n\n".join(told[-2:]), flush=True)
        except TraceFault as fault:
            print(f"bench-pd: {fault}", file=sys.stderr)
            return 1
    if options.keep:
        options.keep.write_text("\n\n".join(told) + "\n")
    return 0 if is_met else 1


def _workloads(options: argparse.Namespace) -> Iterable[Workload]:
    if options.only != "steady":
        yield from shifting(0, is_quick=options.quick)
    if options.only != "shifting":
        yield from steady(QUICK_REQUESTS if options.quick else REQUESTS)


def _table(workload: Workload, rows: dict[str, Figures]) -> str:
    kinds = dict.fromkeys(kind for _, kind in workload.phases)
    cells = [[*HEAD, *kinds], *([name, *_cells(row)] for name, row in rows.items())]
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells]
    title = f"{workload.name}: {len(workload.trace.arrivals)} requests, {workload.ttft_s:g} s, {workload.tpot_s:g} s"
    return "\n".join([title, *lines])


def _cells(row: Figures) -> list[str]:
    seconds = [f"{value:.3f}" for value in (row.ttft_p50, row.ttft_p90, row.ttft_p99, row.tpot_p50, row.tpot_p99)]
    kinds = [f"{value:.3f}" for value in row.by_kind.values()]
    return [f"{row.goodput:.3f}", *seconds, f"{row.split:.2f}", str(row.changes), *kinds]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pd", description="What splitting prefill from decode buys.")
    parser.add_argument("--seeds", type=int, default=1, metavar="N")
    parser.add_argument("--quick", action="store_true", help="short: shows that it runs, proves nothing")
    parser.add_argument("--only", choices=("steady", "shifting"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="runs at once")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write what is printed to this file too")
    return parser.parse_args(arguments)


def _head(seeds: int) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"bench-pd, {datetime.now(UTC):%Y-%m-%d}, {python}, {seeds} seeds"


if __name__ == "__main__":
    sys.exit(main())
