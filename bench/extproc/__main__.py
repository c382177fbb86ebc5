"""Runs all loads on every mode with either picker in turns, prints the tables and the verdict.

    python -m bench.extproc --envoy FILE [--quick] [--rounds N] [--seconds S] [--keep FILE]

Exit code 1 where something wanted was not reached or not measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from bench.extproc import loads, report
from bench.extproc.rounds import Bench
from bench.overhead.mock_pods import mock_pods

PODS = 16
"""Enough that 150 prompts of 220 KB fit into their caches: else admission queues them, as it should."""
FAULTS_SHOWN = 5

METHOD = """\
{pods} mock pods, one Envoy thread, one process of each picker: ours with tenants, tiers, limits and a usage log, and
told by Envoy how each request ended; the bare one a handler on grpc.aio with uvloop that gives pods in turn and reads
nothing. CPU: what the scheduler gave to each process's threads (/proc/PID/task/*/schedstat); medians of {rounds}
rounds of {seconds:g} s in which modes and pickers take turns. Requests in a closed loop of {connections} connections;
chunks while {streams} streams flow at one per {pace} ms; 220 KB prompts as streams of a second, {concurrent} at a time.
Without a body there is nothing to place: ours answers /v1/models itself, the bare one sends it to a pod. Every answer
is checked to be whole. Envoy's health checks and its own log are off for all.\
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    # Told to go, leave as if interrupted: nothing that was started may stay behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder, mock_pods(PODS) as ports:
        bench = Bench(ports, Path(folder), options.envoy)
        uvloop.run(bench.run(options.rounds, options.seconds))
    return _conclude(bench, options)


def _conclude(bench: Bench, options: argparse.Namespace) -> int:
    found = report.targets(bench.figures, len(bench.faults))
    method = METHOD.format(
        pods=PODS,
        rounds=options.rounds,
        seconds=options.seconds,
        connections=loads.CONNECTIONS,
        streams=loads.CHUNK_STREAMS,
        pace=loads.CHUNK_PACE_MS,
        concurrent=loads.CONCURRENT,
    )
    machine = f"{os.cpu_count()} shared cores, {platform.python_implementation()} {platform.python_version()}"
    lines = [
        f"bench-extproc, {datetime.now(UTC):%Y-%m-%d}, {machine}, load average {os.getloadavg()[1]:.1f}",
        method,
        report.tables(bench.figures),
        "\n".join(map(str, found)),
        report.stated(bench.figures),
    ]
    print("\n\n".join(lines))
    if bench.faults:
        print(f"\n{len(bench.faults)} answers were not whole: {'; '.join(bench.faults[:FAULTS_SHOWN])}")
    if options.keep:
        options.keep.write_text("\n\n".join(lines) + "\n")
    return 0 if all(target.is_met for target in found) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.extproc", description="What it costs to be Envoy's picker.")
    parser.add_argument("--envoy", type=Path, required=True, metavar="FILE", help="Envoy's binary")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load in each round")
    parser.add_argument("--quick", action="store_true", help="1 round of 1.5 s")
    parser.add_argument("--keep", type=Path, help="write what is printed to this file too")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.seconds = 1, 1.5
    return options


if __name__ == "__main__":
    sys.exit(main())
