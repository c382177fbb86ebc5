"""Plays scenarios, prints a table and one line for each thing that issue 5 wants.

    python -m bench.slo [--scenario NAME ...] [--policy NAME ...] [--seeds N | --seed N] [--load X] [--jobs N]
                        [--only virtual | gateways | live | live-gateways] [--gateways N ...] [--link LINK ...]
                        [--requests N] [--quick] [--keep FILE]
    python -m bench.slo --url URL --load X --scenario NAME [--requests N] [--model NAME] [--key-of NAME=KEY ...]
                        [--header-of NAME=HEADER:VALUE ...]

The second form plays over HTTP against a gateway that stands already. Exit status 1 where something falls short, or
nothing was measured that could.
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

import uvloop

from bench.slo.gateways import LAYOUTS, ONE, SCENARIOS, Gateways, Link
from bench.slo.live import Address, headers_by_name
from bench.slo.live_gateways import LIVE_LAYOUTS, LIVE_ONE, LIVE_REQUESTS, LiveBlock, play_live_gateways
from bench.slo.policies import POLICIES
from bench.slo.reading import known_scenarios, load_scenario
from bench.slo.rows import Block
from bench.slo.runs import Runs, play_gateways, play_virtual
from bench.slo.scenario import Scenario
from bench.slo.stand import play_and_sum, play_contenders
from bench.slo.targets import gateway_targets, targets_of
from simulator.children import ChildFailed
from simulator.stage import MODEL
from tenancy.document import InvalidDocument

SEEDS, QUICK_SEEDS = 5, 2
QUICK_REQUESTS = 300
"""Of the counted tier, in virtual time."""

QUICK_LIVE_REQUESTS = LIVE_REQUESTS // 2
"""The same for several gateways live."""

METHOD = """\
Virtual time: the real spine and router before simulated engines (12,000 tokens/s of prefill and less with context,
steps of 12 ms and more), clients that retry as OpenAI's does. Medians of seeds, each figure by itself.
attainment: offered requests whose whole answer kept the promise of their tier; a refusal is a miss, and the clock runs
from the first attempt. of best: by what first come, first served on the least loaded engine keeps at its best load.
Jain: service by tenant against its fair part of what its tier got, while there was load. dry: longest time without a
first token of a tenant. wasted: computed tokens that are in nobody's answer.\
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    seeds = range(options.seeds) if options.seed is None else [options.seed]
    many: list[LiveBlock] = []
    try:
        scenarios = [load_scenario(name).lasting(options.requests) for name in options.scenario]
        blocks, several, live = _play(scenarios, seeds, options)
        if options.only in (None, "live-gateways") and not (options.load or options.url):
            names = [one for one in SCENARIOS if one in options.scenario]
            played = [one for one in LIVE_LAYOUTS if one is LIVE_ONE or _is_chosen(one.programs, one.gateways, options)]
            many = play_live_gateways(names, seeds[0], options.live_requests, played)
    except (OSError, InvalidDocument, ChildFailed) as fault:
        print(f"bench-slo: {fault}", file=sys.stderr)
        return 1
    targets = [target for block in blocks for target in targets_of(block)]
    targets += [target for block in several for target in gateway_targets(block)]
    targets += [target for block in many for target in block.targets()]
    page = "\n\n".join(
        [_head(seeds), METHOD, *map(str, [*blocks, *several, *live, *many]), "\n".join(map(str, targets))]
    )
    print(page)
    if options.keep:
        options.keep.write_text(page + "\n")
    is_judged = bool(targets) or bool(options.url)
    return 0 if is_judged and all(target.is_met for target in targets) else 1


def _play(
    scenarios: Sequence[Scenario], seeds: Sequence[int], options: argparse.Namespace
) -> tuple[list[Block], list[Block], list[Block]]:
    """What is judged of one gateway and of several, and what is only shown."""
    if options.url:
        address = Address(options.url, headers_by_name(options.key_of, options.header_of), options.model)
        figures = uvloop.run(play_and_sum(address, scenarios[0], options.load, seeds[0]))
        return [], [], [Block(scenarios[0], options.load, None, {options.url: figures})]
    blocks, several, live = [], [], []
    with ProcessPoolExecutor(options.jobs) as pool:
        if options.only in (None, "virtual"):
            policies = [POLICIES[name] for name in options.policy]
            blocks = play_virtual(Runs(pool, seeds), scenarios, policies, options.load)
        if options.only in (None, "gateways"):
            layouts = [one for one in LAYOUTS if one is ONE or _is_chosen(one.count, one, options)]
            several = play_gateways(Runs(pool, seeds), scenarios, layouts, options.load)
    if options.only in (None, "live") and not options.load:
        live = play_contenders(seeds[0])
    return blocks, several, live


def _is_chosen(programs: int, gateways: Gateways, options: argparse.Namespace) -> bool:
    """Whether a row of several gateways, or of processes of one, is to be played."""
    return programs in options.gateways and gateways.link in options.link


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.slo", description="Who keeps whose promise under overload.")
    parser.add_argument("--scenario", nargs="+", default=known_scenarios(), metavar="NAME")
    parser.add_argument("--policy", nargs="+", default=list(POLICIES), choices=list(POLICIES), metavar="NAME")
    parser.add_argument("--seeds", type=int, metavar="N", help=f"{SEEDS} unless --quick")
    parser.add_argument("--seed", type=int, metavar="N", help="only this one")
    parser.add_argument("--load", type=float, metavar="X", help="requests a second, instead of what the files say")
    parser.add_argument("--requests", type=int, metavar="N", help="of the tier that is counted, instead")
    counts = sorted({layout.count for layout in LAYOUTS} - {1})
    parser.add_argument("--gateways", nargs="+", type=int, default=counts, choices=counts, metavar="N")
    parser.add_argument("--link", nargs="+", default=list(Link), choices=list(Link), help="rows of several gateways")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_SEEDS} seeds, {QUICK_REQUESTS} requests; live {QUICK_LIVE_REQUESTS}",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="runs at once")
    parser.add_argument("--only", choices=("virtual", "gateways", "live", "live-gateways"))
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write what is printed to this file too")
    parser.add_argument("--url", help="play on this gateway, over HTTP")
    parser.add_argument("--model", default=MODEL, help="which model it is asked for (default %(default)s)")
    parser.add_argument("--key-of", nargs="+", default=[], metavar="NAME=KEY", help="of a tenant, or of a tier")
    parser.add_argument("--header-of", nargs="+", default=[], metavar="NAME=HEADER:VALUE", help="the same")
    options = parser.parse_args(arguments)
    options.seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    options.live_requests = options.requests or (QUICK_LIVE_REQUESTS if options.quick else LIVE_REQUESTS)
    if options.quick and options.requests is None:
        options.requests = QUICK_REQUESTS
    if options.url and (options.load is None or len(options.scenario) != 1):
        parser.error("--url wants --load and one --scenario")
    return options


def _head(seeds: Sequence[int]) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"bench-slo, {datetime.now(UTC):%Y-%m-%d}, {python}, {len(seeds)} seeds"


if __name__ == "__main__":
    sys.exit(main())
