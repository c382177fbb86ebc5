"""Plays scenarios in virtual time, prints a table and one line for each thing that issue 5 wants.

    python -m bench.slo [--scenario NAME ...] [--policy NAME ...] [--seeds N | --seed N] [--load X]
                        [--jobs N] [--keep FILE]

Exit status 1 where something falls short, or was not measured.
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

from bench.slo.best import Best
from bench.slo.policies import POLICIES
from bench.slo.reading import known_scenarios, load_scenario
from bench.slo.rows import Block
from bench.slo.runs import Runs
from bench.slo.scenario import Scenario
from bench.slo.targets import targets_of
from simulator.trace_formats import TraceFault
from tenancy.document import Invalid

METHOD = """\
Virtual time: the real spine and router before simulated engines (12,000 tokens/s of prefill and less with context,
steps of 12 ms and more), clients that retry as OpenAI's does. Medians of seeds, each figure by itself.
attainment: offered requests whose whole answer kept the promise of their tier; a refusal is a miss, and the clock runs
from the first attempt. of best: by what first come, first served on the least loaded engine keeps at its best load.
Jain: service by tenant against its fair part of what its tier got. dry: longest time without a first token of a tenant.
wasted: computed tokens that are in nobody's answer.\
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    seeds = range(options.seeds) if options.seed is None else [options.seed]
    try:
        scenarios = [load_scenario(name) for name in options.scenario]
    except (OSError, Invalid) as fault:
        print(f"bench-slo: {fault}", file=sys.stderr)
        return 1
    with ProcessPoolExecutor(options.jobs) as pool:
        blocks = _play_all(Runs(pool, seeds), scenarios, options)
    targets = [target for block in blocks for target in targets_of(block)]
    told = "\n\n".join([_head(seeds), METHOD, *map(str, blocks), "\n".join(map(str, targets))])
    print(told)
    if options.keep:
        options.keep.write_text(told + "\n")
    return 0 if targets and all(target.is_met for target in targets) else 1


def _play_all(runs: Runs, scenarios: Sequence[Scenario], options: argparse.Namespace) -> list[Block]:
    bests: dict[str, Best] = {}
    blocks = []
    for scenario in scenarios:
        try:
            best = None if options.load else _best(runs, scenario, bests)
            load = best.load * scenario.load if best else options.load
            figures = runs.measure(scenario, [POLICIES[name] for name in options.policy], load)
        except TraceFault as fault:
            print(f"{scenario.name} is left out: {fault}", file=sys.stderr)
            continue
        blocks.append(Block(scenario, load, best, figures))
        print(f"{blocks[-1]}\n", file=sys.stderr, flush=True)
    return blocks


def _best(runs: Runs, scenario: Scenario, bests: dict[str, Best]) -> Best:
    """Of the scenario that it is like: what comes on top of that is no reason to ask for less."""
    if scenario.base not in bests:
        bests[scenario.base] = found = runs.find_best(load_scenario(scenario.base))
        print(f"{scenario.base}: best load {found.load:.2f}/s, met {found.met_per_s:.2f}/s\n", file=sys.stderr)
    return bests[scenario.base]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.slo", description="Who keeps whose promise under overload.")
    parser.add_argument("--scenario", nargs="+", default=known_scenarios(), metavar="NAME")
    parser.add_argument("--policy", nargs="+", default=list(POLICIES), choices=list(POLICIES), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--seed", type=int, metavar="N", help="only this one")
    parser.add_argument("--load", type=float, metavar="X", help="requests a second, instead of what the files say")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="runs at once")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write what is printed to this file too")
    return parser.parse_args(arguments)


def _head(seeds: Sequence[int]) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"bench-slo, {datetime.now(UTC):%Y-%m-%d}, {python}, {len(seeds)} seeds"


if __name__ == "__main__":
    sys.exit(main())
