"""How gateways route from ten seconds after their Redis returned, beside the same gateways whose Redis was never away.

    python -m bench.outage [--seeds N] [--gateways N] [--jobs N] [--keep FILE]

Virtual time, generated conversations, the same requests in every row. For 30 s updates are lost (Redis dies and returns
empty), held back (Redis stalls; also what a bridge keeps while Redis is dead), or those of one gateway are lost (a
partition that one side sees). Exit status 1 where a row is worse than without a fault by more than is wanted.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path

from bench.target import Target
from simulator.profile import Profile
from simulator.records import Record
from simulator.replay import Fault, Setting, play
from simulator.spread import spread_of
from simulator.workload import CHAT, generate

PODS = 8
BLOCK_TOKENS = 64
REQUESTS_PER_S = 6.0
AWAY_FROM_S, AWAY_TO_S = 150.0, 180.0
BACK_S = 10.0
"""After so long routing is to be as good as before."""
JUDGED_S = 90.0
"""Requests that arrive within this time are judged."""

MAX_HITS_LOST, MAX_TTFT = 0.02, 1.1
"""What a row may have less of hits, as a share, and its p95 of TTFT by that without a fault."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line: figures of the judged requests of all seeds."""

    name: str
    hit: float
    ttft_mean_s: float
    ttft_p95_s: float
    failed: int

    def __str__(self) -> str:
        return f"{self.name:44} {self.hit:6.4f} {self.ttft_mean_s:9.3f} {self.ttft_p95_s:8.3f} {self.failed:6}"


def settings(gateways: int) -> dict[str, Setting]:
    """The rows by name."""
    profile = replace(Profile(), block_size=BLOCK_TOKENS)
    several = Setting(pods=PODS, profile=profile, replicas=gateways)
    faults = {
        "": Fault("none"),
        ", updates lost for 30 s": Fault("drop", AWAY_FROM_S, AWAY_TO_S),
        ", updates held back for 30 s": Fault("stall", AWAY_FROM_S, AWAY_TO_S),
        ", those of one lost for 30 s": Fault("isolate", AWAY_FROM_S, AWAY_TO_S),
    }
    rows = {f"{gateways} gateways{name}": replace(several, fault=fault) for name, fault in faults.items()}
    return {"one gateway": replace(several, replicas=1), **rows}


def judged(setting: Setting, seed: int) -> list[Record]:
    """Play one row with one seed; the requests that arrive from `BACK_S` after the return on."""
    count = int(REQUESTS_PER_S * (AWAY_TO_S + BACK_S + JUDGED_S))
    trace = generate(replace(CHAT, requests_per_s=REQUESTS_PER_S), count, seed=seed)
    first_s = AWAY_TO_S + BACK_S
    records = play(trace, replace(setting, seed=seed)).records
    return [record for record in records if first_s <= record.arrived_s < first_s + JUDGED_S]


def row_of(name: str, records: Sequence[Record]) -> Row:
    """Sum up the judged requests of a row."""
    answered = [record for record in records if not record.failure]
    ttft = spread_of([record.ttft_s for record in answered if record.ttft_s is not None])
    hit = sum(record.cached_tokens or 0 for record in answered) / sum(record.prompt_tokens for record in answered)
    return Row(name, hit, ttft.mean, ttft.p95, len(records) - len(answered))


def targets(rows: Sequence[Row]) -> list[Target]:
    """Each row with a fault beside the same gateways without one, which stand second."""
    undisturbed = rows[1]
    found = []
    for row in rows[2:]:
        hits = row.hit / undisturbed.hit
        found.append(Target(f"{row.name}, hits by those without", 1 - MAX_HITS_LOST, hits, is_minimum=True))
        found.append(Target(f"{row.name}, TTFT p95 by that without", MAX_TTFT, row.ttft_p95_s / undisturbed.ttft_p95_s))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 where every row is as good as wanted."""
    parser = argparse.ArgumentParser(prog="python -m bench.outage", description="Routing after Redis has returned.")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--gateways", type=int, default=4, metavar="N")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="runs at once")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write what is printed to this file too")
    options = parser.parse_args(arguments)
    rows = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for name, setting in settings(options.gateways).items():
            print(f"{name} ...", file=sys.stderr, flush=True)
            played = pool.map(partial(judged, setting), range(options.seeds))
            rows.append(row_of(name, list(chain.from_iterable(played))))
    python = f"{platform.python_implementation()} {platform.python_version()}"
    when = f"requests that arrive {BACK_S:g} to {BACK_S + JUDGED_S:g} s after the return"
    head = f"bench-outage, {datetime.now(UTC):%Y-%m-%d}, {python}, {options.seeds} seeds: {when}"
    heads = f"{'':44} {'hit':>6} {'TTFT mean':>9} {'p95':>8} {'failed':>6}"
    found = targets(rows)
    page = "\n".join([head, "", heads, *map(str, rows), "", *map(str, found)])
    print(page)
    if options.keep:
        options.keep.write_text(page + "\n")
    return 0 if all(target.is_met for target in found) else 1


if __name__ == "__main__":
    sys.exit(main())
