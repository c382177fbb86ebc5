"""Compares routing in virtual time and live, prints the tables and one line for each thing that issue 4 wants.

    python -m bench.routing [--quick] [--seeds N] [--runs N] [--only PART] [--load WORD] [--time-scale X]
                            [--rows WORD ...] [--without WORD ...] [--keep FILE] [--merge FILE]

The traces are looked for in the folder that TRACES names. Exit status 1 where something falls short or is missing.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from bench.overhead.gateways import RIVALS
from bench.routing.contenders import OURS, Contender, contenders
from bench.routing.kept import Table, merged, read_tables
from bench.routing.live import Live, play_live
from bench.routing.loads import ENGINES, JITTER_S, LOADS, PODS, Load
from bench.routing.offline import ENTRIES, IN_VIRTUAL_TIME, REPLICAS, Offline, compare, same_requests
from bench.routing.outage import DEAD_FROM, DEAD_TO, play_outage
from bench.routing.redis import redis_binary
from bench.routing.rows import Row
from bench.routing.targets import Target, agreement_targets, live_targets, offline_targets, replica_targets
from simulator.policies.registry import COMPARED
from simulator.policies.registry import OURS as OUR_POLICY
from simulator.trace_formats import TraceFault

QUICK_REQUESTS = 200

METHOD = f"""\
{PODS} simulated pods, alike: 12,000 tokens/s of prefill, constant or growing with context (x (1 + context / 100,000)),
steps of 12 ms and more, 1,000,000 KV tokens, chunked prefill of 8,192 tokens a step. Seconds are the engines'.
hit: share of prompt tokens found cached. wait: TTFT beyond what the request's own cold tokens need on an idle pod.
TPOT in ms. imbalance: prefill of the busiest pod by the mean.
Virtual: whole traces at their recorded rate through the real router and spine; others' policies by their published
rules and defaults, fed by our warm index (cache-aware by its own tree). A seed moves each arrival by up to
{JITTER_S:g} s and draws ties. The bound is one cache of all pods' size that knows the future (Belady).
Live: `hearth serve` and the routers from PyPI, each with its defaults and with pods and a client of its own, all
playing at the same moments, so that a disturbed machine disturbs all alike. Rates are learned, not given. Each live run
of generated agents has sessions of its own.\
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    loads = [load for load in LOADS if options.load.lower() in load.name.lower()]
    tables: list[Table] = []
    try:
        if options.only in (None, "virtual"):
            tables += _virtual(loads, options)
        if options.only in (None, "live"):
            tables += _live(loads, options)
        if options.only in (None, "outage") and not options.quick:
            tables += _outage(options)
    except TraceFault as fault:
        print(f"bench-routing: {fault}", file=sys.stderr)
        return 1
    if options.merge and options.merge.exists():
        tables = merged(read_tables(options.merge.read_text(), [load.name for load in LOADS]), tables)
    found = [target for table in tables for target in _targets(table)]
    if options.only in (None, "outage") and redis_binary() is None:
        found.append(Target("Redis outage", 0, None, why="no redis-server"))
    page = "\n\n".join([_head(options), METHOD, *map(str, tables), "\n".join(map(str, found))])
    print(page)
    for file in filter(None, (options.keep, options.merge)):
        file.write_text(f"{page}\n")
    return 0 if found and all(target.is_met for target in found) else 1


def _virtual(loads: Sequence[Load], options: argparse.Namespace) -> Iterator[Table]:
    entries = [entry for entry in ENTRIES if _is_wanted(entry.name, options)]
    for load in loads:
        one: Offline = compare(load, ENGINES[options.virtual_prefill], options.seeds, os.cpu_count() or 1, entries)
        head = (
            f"{load.name}, {options.virtual_prefill} prefill, medians of {options.seeds} (16 gateways: at most "
            f"{REPLICAS.max_seeds}); clairvoyant bound of hits {one.bound:.3f}"
        )
        yield _shown(Table(load.name, "virtual", head, one.rows))


def _live(loads: Sequence[Load], options: argparse.Namespace) -> Iterator[Table]:
    chosen = _present(options)
    with tempfile.TemporaryDirectory() as folder:
        for load in loads:
            requests = QUICK_REQUESTS if options.quick else None
            engine = replace(ENGINES[options.live_prefill], time_scale=options.time_scale)
            runs = play_live(load, chosen, engine, options.runs, requests, Path(folder))
            live: Live = uvloop.run(runs)
            head = (
                f"{load.name}, {options.live_prefill} prefill, first {requests or load.requests:,} requests at "
                f"{load.speed:g} x their rate, medians of {options.runs}, clock x {options.time_scale:g}"
            )
            rows = (*live.rows, same_requests(load, engine, options.runs, requests))
            yield _shown(Table(load.name, "live", head, rows, live.lateness))


def _outage(options: argparse.Namespace) -> Iterator[Table]:
    if redis_binary() is None:
        return
    engine = replace(ENGINES[options.live_prefill], time_scale=options.time_scale)
    with tempfile.TemporaryDirectory() as folder:
        outage = uvloop.run(play_outage(engine, Path(folder)))
    head = f"{LOADS[0].name}, live, {outage.length_s:.0f} s, Redis dead from {DEAD_FROM:.0%} to {DEAD_TO:.0%} of it"
    yield _shown(Table(LOADS[0].name, "outage", head, (*outage.rows, *outage.after)))


def _shown(table: Table) -> Table:
    print(f"\n{table}\n", file=sys.stderr)
    return table


def _targets(table: Table) -> list[Target]:
    """What is wanted of the rows that a table has."""
    load = next(load for load in LOADS if load.name == table.load)
    rows = {row.name: row for row in table.rows}
    if table.where == "virtual":
        if not {*COMPARED, REPLICAS.name} <= rows.keys():
            return []
        found = offline_targets(load, [rows[name] for name in COMPARED])
        return found + replica_targets(load, "virtual", rows[OUR_POLICY], rows[REPLICAS.name], REPLICAS.name)
    if table.where == "live":
        return live_targets(load, table.rows) + _agreement(load, rows) + _many(load, rows)
    if len(table.rows) != 4:
        return []
    full, one, many = table.rows[1:]
    name = "4 replicas, a minute after Redis was back"
    failed = Target(f"{load.name}, live, Redis outage: failed requests", 0, full.failed)
    return [*replica_targets(load, "live", one, many, name)[:2], failed]


def _agreement(load: Load, rows: Mapping[str, Row]) -> list[Target]:
    """Live against virtual time, where both were played."""
    if not {OURS, IN_VIRTUAL_TIME} <= rows.keys():
        return []
    return agreement_targets(load, rows[OURS], rows[IN_VIRTUAL_TIME])


def _many(load: Load, rows: Mapping[str, Row]) -> list[Target]:
    """Several gateways against one, where both were played; said to be skipped where not."""
    if OURS not in rows:
        return []
    return [
        target
        for one in contenders()
        if one.name.startswith(f"{OURS},")
        for target in replica_targets(load, "live", rows[OURS], rows.get(one.name), one.name, one.lacks() or "left out")
    ]


def _is_wanted(name: str, options: argparse.Namespace) -> bool:
    """Whether a row is to be played."""
    named = not options.rows or any(part in name for part in options.rows)
    return named and not any(part in name for part in options.without)


def _present(options: argparse.Namespace) -> list[Contender]:
    there = []
    for contender in contenders():
        if not _is_wanted(contender.name, options):
            continue
        if why := contender.lacks():
            print(f"{contender.name} is left out: {why}", file=sys.stderr)
            continue
        there.append(contender)
    return there


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.routing", description="Where requests go, by whose rule.")
    parser.add_argument("--seeds", type=int, default=5, help="of each policy in virtual time")
    parser.add_argument("--runs", type=int, default=3, help="of each contender live")
    parser.add_argument("--only", choices=("virtual", "live", "outage"))
    parser.add_argument("--load", default="", metavar="WORD", help="loads whose name has this word")
    parser.add_argument("--without", nargs="*", default=[], metavar="WORD", help="leave out rows by a word")
    parser.add_argument("--rows", nargs="*", default=[], metavar="WORD", help="play only rows with one of these words")
    parser.add_argument(
        "--time-scale", type=float, default=1.0, metavar="X", help="live: the clock runs X times as fast"
    )
    for where, shape in (("virtual", "growing"), ("live", "constant")):
        parser.add_argument(f"--{where}-prefill", choices=list(ENGINES), default=shape, help="(default %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"one seed, one live run of {QUICK_REQUESTS} requests")
    parser.add_argument("--merge", type=Path, metavar="FILE", help="put the rows played over those that FILE has")
    parser.add_argument("--keep", type=Path, help="write what is printed to this file too")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.runs = 1, 1
    return options


def _head(options: argparse.Namespace) -> str:
    machine = f"{os.cpu_count()} shared cores, {platform.python_implementation()} {platform.python_version()}"
    versions = "" if options.only == "virtual" else f"\nsmg {_wheel('smg')}, vllm-router {_wheel('vllm-router')}"
    return f"bench-routing, {datetime.now(UTC):%Y-%m-%d}, {machine}{versions}"


def _wheel(name: str) -> str:
    python = RIVALS / "python"
    if not python.exists():
        return "not installed"
    code = f"from importlib.metadata import version; print(version({name!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
