"""Runs all loads on all gateways in turns, prints the table and the verdict.

    python -m bench.overhead [--quick] [--rounds N] [--seconds S] [--soak S] [--only NAME ...] [--keep FILE]

Exit code 1 where something wanted was not reached or not measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from bench.commit import measured_commit
from bench.overhead import report, rounds
from bench.overhead.gateways import Kind, kinds
from bench.overhead.mock_pods import mock_pods

PODS = 4
IDLE_STREAMS = 10_000
FDS_PER_STREAM = 2
SPARE_FDS = 1_500
"""What a gateway keeps for accepting, rejecting, logs and other files, and the warm-up connections of the load."""
FAULTS_SHOWN = 5

METHOD = """\
{pods} mock pods; one nginx worker, unbuffered; the routers with `cache_aware`; ours with tenants, tiers and limits, and
a usage log; `hearth-open` without a policy. CPU: what the scheduler gave to the gateway's threads
(/proc/PID/task/*/schedstat); medians of {rounds} rounds of {seconds:g} s in which the gateways take turns; in brackets
the ratio to nginx. Unary in a closed loop of {connections} connections ({large} with 128 KB), and at {unary:g}/s;
chunks are counted while all streams flow. Added TTFT: percentiles at {first:g} short streams/s, less those of the
direct path in the same round. Idle streams: {idle:,} open at once on a fresh gateway, difference of RSS. Every answer
is checked to be whole.\
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    # Told to go, leave as if interrupted: nothing that was started may stay behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    idle = _streams_allowed(IDLE_STREAMS)
    present = _present(options.only)
    with tempfile.TemporaryDirectory() as folder, mock_pods(PODS) as ports:
        bench = rounds.Bench(ports, Path(folder))
        uvloop.run(_run(bench, present, idle, options))
    return _conclude(bench, present, idle, options)


async def _run(bench: rounds.Bench, present: Sequence[Kind], idle: int, options: argparse.Namespace) -> None:
    gateways = [await bench.start(kind) for kind in present]
    try:
        await bench.rounds(gateways, options.rounds, options.seconds)
    finally:
        for gateway in gateways:
            await gateway.stop()
    for kind in present:
        await bench.idle(kind, idle)
    if options.soak and present[0].name == report.OURS:
        await bench.soak(present[0], options.soak)


def _conclude(bench: rounds.Bench, present: Sequence[Kind], idle: int, options: argparse.Namespace) -> int:
    found = report.targets(bench.figures, bench.growth, len(bench.faults[report.OURS]))
    versions = ", ".join(f"{kind.name} {kind.version()}" for kind in present)
    method = METHOD.format(
        pods=PODS,
        rounds=options.rounds,
        seconds=options.seconds,
        unary=rounds.UNARY_RATE,
        connections=rounds.CONNECTIONS,
        large=rounds.LARGE_CONNECTIONS,
        first=rounds.FIRST_TOKEN_RATE,
        idle=idle,
    )
    soak = f" Soak of {options.soak:g} s." if options.soak else ""
    machine = f"{os.cpu_count()} shared cores, {platform.python_implementation()} {platform.python_version()}"
    lines = [
        f"bench-overhead, {datetime.now(UTC):%Y-%m-%d}, commit {measured_commit()}, {machine}\n{versions}",
        method + soak,
        report.table(bench.figures, [kind.name for kind in present]),
        "\n".join(map(str, found)),
    ]
    print("\n\n".join(lines))
    for name, faults in bench.faults.items():
        if faults:
            print(f"\n{name}: {len(faults)} answers were not whole: {'; '.join(faults[:FAULTS_SHOWN])}")
    if options.keep:
        options.keep.write_text("\n\n".join(lines) + "\n")
    return 0 if all(target.is_met for target in found) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description="What the gateway costs.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load in each round")
    parser.add_argument("--soak", type=float, default=600.0, help="seconds, 0 for none")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 2 s, a soak of 30 s")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these gateways only")
    parser.add_argument("--keep", type=Path, help="write what is printed to this file too")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.seconds, options.soak = 2, 2.0, min(options.soak, 30.0)
    return options


def _present(only: Sequence[str] | None) -> list[Kind]:
    chosen = [kind for kind in kinds() if not only or kind.name in only]
    for kind in chosen:
        if not kind.is_there:
            print(f"{kind.name} is not there and is left out; to get it: {kind.how_to_get}", file=sys.stderr)
    return [kind for kind in chosen if kind.is_there]


def _streams_allowed(wanted: int) -> int:
    """Return how many streams the file limit allows; it is raised for this process and its children."""
    limit = wanted * FDS_PER_STREAM + SPARE_FDS
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return (allowed - SPARE_FDS) // FDS_PER_STREAM


if __name__ == "__main__":
    sys.exit(main())
