"""Plays workloads in every way, prints a table and one line for each thing that issue 6 wants.

    python -m bench.pd [--seeds N ...] [--quick] [--only SECTION] [--jobs N] [--parts FOLDER] [--keep FILE]

Sections: `hours` (each recording by itself), `shifting` (days that turn), `steady` (each request's own choice) and
`prices` (two kinds of engines). With `--parts` the figures of each way are written there, and ways whose figures are
there are not played again.

Needs the recorded traces in the folder that TRACES names. Exit status 1 where something falls short.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bench.commit import measured_commit
from bench.pd.figures import Figures, middle
from bench.pd.prices import price_rows, price_table, price_targets
from bench.pd.prices import workload as price_workload
from bench.pd.targets import fixed_splits, targets_of
from bench.pd.ways import (
    Way,
    always_way,
    central_way,
    choice_way,
    fixed_ways,
    knowing_ways,
    play_way,
    soft_way,
)
from bench.pd.workloads import ENGINES, PATIENCE_S, Day, Workload, alone, hours, shifting, steady
from bench.target import Target
from simulator.trace_formats import TraceFault

TUNED_ON = 0
"""The seed of the made-up day by whose five-minute turns the defaults of soft roles were chosen, beside recordings."""

HELD_OUT = (31, 32, 33)
"""Seeds by which no default was chosen."""

METHOD = f"""\
Virtual time: the real spine, router and keeper of roles before {ENGINES} simulated engines, transfers over a shared
200 Gb/s wire each. kP:mD: k engines prefill everything, m decode everything. always: each engine does either, no
request has both done by one. colocated: each engine does both, and none hands over. clairvoyant: of each kind of phase
one of the two fixed splits that are best for it by itself, changed at the very turn. goodput: first token and pace as
promised, over offered; who has waited {PATIENCE_S:g} s has gone. Medians of seeds. Recordings are sampled by time: each
phase plays the stretch that follows the one before it. Defaults of roles were chosen on two
phases of seed {TUNED_ON}'s made-up 5-minute day and on the first minutes of each recording (played: azure-code 6, the
others 12); those of the scorer `prefill_stall` on the pieces marked so, on requests 1,500 to 4,500 and 6,700 to 8,200
of azure-code and on 3,000 to 6,000 of mooncake; the rest was looked at later.\
"""

HEAD = ("way", "goodput", "TTFT p50", "p90", "p99", "TPOT p50", "p99", "split", "changes")

REQUESTS, QUICK_REQUESTS = 1_500, 600

SECTIONS = ("hours", "shifting", "steady", "prices")


class Bench:
    """One run of it."""

    def __init__(self, pool: ProcessPoolExecutor, parts: Path | None = None) -> None:
        self._pool = pool
        self._parts = parts

    def play(self, ways: Iterable[Way], days: Sequence[Workload]) -> dict[str, Figures]:
        """Each way over the same day with all seeds."""
        started = {
            way.name: [self._pool.submit(played, way, day, seed, self._parts) for seed, day in enumerate(days)]
            for way in ways
        }
        return {name: middle([run.result() for run in runs]) for name, runs in started.items()}

    def shifting(self, days: Sequence[Workload]) -> dict[str, Figures]:
        """Fixed ways and ours, and those who knew which fixed way is best for what."""
        rows = self.play([*fixed_ways(), soft_way()], days)
        kinds = dict.fromkeys(kind for _, kind in days[0].phases)
        best = {kind: self._best_splits(kind, days[0]) for kind in kinds}
        return {**rows, **self.play(knowing_ways(best, days[0]), days)}

    def _best_splits(self, kind: str, workload: Workload) -> list[int]:
        """The two best for one kind of traffic by itself, by how many prefill."""
        splits = fixed_splits(self.play(fixed_ways(), [alone(kind, workload, seed=1)]))
        best = sorted(splits, key=lambda name: splits[name].goodput, reverse=True)[:2]
        return [int(name.partition("P")[0]) for name in best]

    def hour(self, day: Workload) -> dict[str, Figures]:
        """Never, every fixed split, ours, and the best fixed split with a central queue."""
        rows = self.play([*fixed_ways(), soft_way()], [day])
        splits = fixed_splits(rows)
        best = max(splits, key=lambda name: splits[name].goodput)
        return {**rows, **self.play([central_way(int(best.partition("P")[0]))], [day])}

    def steady(self, workload: Workload) -> dict[str, Figures]:
        """Never, always, and as it pays."""
        return self.play([*fixed_ways(), always_way(), choice_way()], [workload])


def played(way: Way, day: Workload, seed: int, parts: Path | None) -> Figures:
    """Play a workload in one way, or return the figures that are kept of it."""
    if parts is None:
        return play_way(way, day, seed)
    words = (day.name, str(len(day.trace.arrivals)), way.name, str(seed))
    path = parts / f"{re.sub('[^A-Za-z0-9]+', '_', ' '.join(words))}.json"
    if path.exists():
        return Figures(**json.loads(path.read_text(encoding="utf-8")))
    figures = play_way(way, day, seed)
    parts.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(figures)), encoding="utf-8")
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    sections, targets = [_head(options.seeds), METHOD], list[Target]()
    with ProcessPoolExecutor(options.jobs) as pool:
        try:
            for workload, rows in _played(Bench(pool, options.parts), options):
                sections.append(_table(workload, rows))
                print(sections[-1], end="\n\n", flush=True)
                targets += targets_of(workload, rows)
            if options.only in (None, "prices"):
                priced = price_workload(is_quick=options.quick)
                found = pool.submit(price_rows, priced).result()
                sections.append(price_table(priced, found))
                print(sections[-1], end="\n\n", flush=True)
                targets += price_targets(priced, found)
        except TraceFault as fault:
            print(f"bench-pd: {fault}", file=sys.stderr)
            return 1
    sections.append("\n".join(map(str, targets)))
    print(sections[-1])
    if options.keep:
        options.keep.write_text("\n\n".join(sections) + "\n")
    return 0 if all(target.is_met for target in targets) else 1


def _played(bench: Bench, options: argparse.Namespace) -> Iterator[tuple[Workload, dict[str, Figures]]]:
    if options.only in (None, "hours"):
        for day in hours(is_quick=options.quick):
            workload = day.workload(seed=0)
            yield workload, bench.hour(workload)
    if options.only in (None, "shifting"):
        for day in shifting(is_quick=options.quick):
            days = [day.workload(seed) for seed in _seeds_of(day, options.seeds)]
            yield days[0], bench.shifting(days)
    if options.only in (None, "steady"):
        for workload in steady(QUICK_REQUESTS if options.quick else REQUESTS):
            yield workload, bench.steady(workload)


def _seeds_of(day: Day, seeds: Sequence[int]) -> Sequence[int]:
    """What was recorded is the same with every seed."""
    return seeds if day.is_drawn else seeds[:1]


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
    parser.add_argument("--seeds", type=int, nargs="+", default=HELD_OUT, metavar="N", help="of days that are made up")
    parser.add_argument("--quick", action="store_true", help="short: shows that it runs, proves nothing")
    parser.add_argument("--only", choices=SECTIONS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="runs at once")
    parser.add_argument("--parts", type=Path, metavar="FOLDER", help="of figures: an interrupted bench goes on there")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write what is printed to this file too")
    return parser.parse_args(arguments)


def _head(seeds: Sequence[int]) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    machine = f"{os.cpu_count()} shared cores"
    made = f"bench-pd, {datetime.now(UTC):%Y-%m-%d}, commit {measured_commit()}, {machine}, {python}"
    return f"{made}, seeds {', '.join(map(str, seeds))}"


if __name__ == "__main__":
    sys.exit(main())
