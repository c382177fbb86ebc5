"""Plays all cases with all scalers and holds them against what issue 25 asks of scaling.

    python -m bench.scale [--case NAME ...] [--seed N ...] [--jobs N] [--traces FOLDER] [--parts FOLDER] [--keep FILE]

With `--parts` the figures of each case are written there, and cases whose figures are there are not played again.
Exit status 1 where a target is missed, or nothing was measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from bench.commit import measured_commit
from bench.scale.cases import cases
from bench.scale.runs import Outcome, play_case, read_outcome, write_outcome
from bench.scale.table import block, targets_of

HELD_OUT = (101,)
"""Seeds of the kept table. Nothing was tuned on them; seeds below 100 are for work on the code."""
TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"

METHOD = """\
Virtual time. Requests with their own arrivals and sizes in front of a coarse fleet (bench/scale/fleet.py: not the
production simulator); the decision is production code (supply/), asked every 30 s about the last minute. Two tiers:
gold (40 %, 3 s + 2 x own prefill, 60 ms a token, probability 0.985) and silver (12 s, 100 ms, 0.97). At the peak of 5
requests/s about 18 engines work. Output lengths count as known; a gateway uses its length forecast.
attainment: offered requests that kept both objectives, rejections are misses. hours: ready, starting and draining
engines. clairvoyant: the fewest hours found that have the attainment of 60 engines, less 0.003. Means of the seeds.\
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench."""
    options = _options(arguments)
    head = _head(options)
    known = list(cases(options.traces))
    exact = [case for case in known if case.name in options.case]
    chosen = exact or [case for case in known if not options.case or any(part in case.name for part in options.case)]
    jobs = [(case.name, seed) for case in chosen for seed in options.seed]
    with ProcessPoolExecutor(options.jobs) as pool:
        played = list(pool.map(_play, [(name, seed, options.traces, options.parts) for name, seed in jobs]))
    outcomes: dict[str, list[Outcome]] = {}
    for outcome in played:
        outcomes.setdefault(outcome.case, []).append(outcome)
    blocks = [block(case, outcomes[case.name]) for case in chosen]
    targets = [target for case in chosen for target in targets_of(case, outcomes[case.name])]
    page = "\n\n".join([head, METHOD, *blocks, "\n".join(map(str, targets))])
    print(page)
    if options.keep:
        options.keep.write_text(page + "\n")
    return 0 if targets and all(target.is_met for target in targets) else 1


def _play(job: tuple[str, int, Path, Path | None]) -> Outcome:
    name, seed, traces, parts = job
    if parts is None:
        return play_case(name, seed, str(traces))
    path = parts / f"{name.replace(' ', '_')}.{seed}.json"
    if path.exists():
        return read_outcome(path.read_text(encoding="utf-8"))
    outcome = play_case(name, seed, str(traces))
    parts.mkdir(parents=True, exist_ok=True)
    path.write_text(write_outcome(outcome), encoding="utf-8")
    return outcome


def _head(options: argparse.Namespace) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    seeds = ", ".join(map(str, options.seed))
    trace = "" if any("Mooncake" in case.name for case in cases(options.traces)) else ", without Mooncake's trace"
    return (
        f"bench-scale, {datetime.now(UTC):%Y-%m-%d}, commit {measured_commit()}, {os.cpu_count()} shared cores, "
        f"{python}, seeds {seeds}{trace}"
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.scale", description="Scaling beside other scalers, in virtual time.")
    parser.add_argument("--case", nargs="+", default=[], help="parts of the names of cases (all)")
    parser.add_argument("--seed", nargs="+", type=int, default=list(HELD_OUT), help="seeds (those held out)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of recorded traces")
    parser.add_argument("--parts", type=Path, help="folder of figures by case: an interrupted bench goes on there")
    parser.add_argument("--keep", type=Path, help="file for the table")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
