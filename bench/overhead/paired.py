"""Compare what this checkout costs with another commit of it, both gateways in turns in one run.

    python -m bench.overhead.paired --against COMMIT [--rounds N] [--seconds S] [--keep FILE]

Each row is the median over rounds of now / then, with the 95 % interval of that median (order statistics of the
binomial distribution, no assumption about the noise). "Not worse" means that the interval ends below 1.03. Both
are started anew after every second round, so that the interval contains what differs from start to start. Exit code 1
where a row does not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from math import comb
from pathlib import Path
from statistics import median

import uvloop

from bench.overhead import report, rounds
from bench.overhead.gateways import ROOT, Kind, kinds
from bench.overhead.mock_pods import mock_pods

PODS = 4
NOT_WORSE = 1.03
CONFIDENCE = 0.95
IDLE_STREAMS = 2_000
ROUNDS_PER_START = 2
"""Rounds after which both gateways are started anew: where the heap of a process lies makes some of them dearer."""
IDLE_ROUNDS = 3
ROWS = (report.UNARY, report.LARGE, report.PACED, report.FAST, report.MANY, report.PER_STREAM)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 where no row is worse."""
    parser = argparse.ArgumentParser(prog="python -m bench.overhead.paired", description=__doc__)
    parser.add_argument("--against", required=True, metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load in each round")
    parser.add_argument("--keep", type=Path, help="write the table to this file too")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, checkout(options.against) as then, mock_pods(PODS) as ports:
        bench = rounds.Bench(ports, Path(folder))
        pairs = [(kind, _then(kind, then)) for kind in kinds()[:2]]
        uvloop.run(_run(bench, pairs, options.rounds, options.seconds))
    text, is_met = verdict(bench.figures, [(now.name, before.name) for now, before in pairs], options.against)
    print(text)
    if options.keep:
        options.keep.write_text(text + "\n")
    return 0 if is_met else 1


async def _run(bench: rounds.Bench, pairs: Sequence[tuple[Kind, Kind]], count: int, seconds: float) -> None:
    for pair in pairs:
        for done in range(0, count, ROUNDS_PER_START):
            gateways = [await bench.start(kind) for kind in pair]
            try:
                await bench.rounds(gateways, min(ROUNDS_PER_START, count - done), seconds)
            finally:
                for gateway in gateways:
                    await gateway.stop()
        for _ in range(IDLE_ROUNDS):
            for kind in pair:
                await bench.idle(kind, IDLE_STREAMS)


COMMAND_OF = """
import json, sys
from pathlib import Path
from bench.overhead.gateways import kinds
name, port, folder, *pods = sys.argv[1:]
kind = next(kind for kind in kinds() if kind.name == name)
print(json.dumps(list(map(str, kind.command(int(port), pods, Path(folder))))))
"""
"""Prints the command line of a gateway: flags and files differ between commits, so each checkout builds its own."""


def _then(kind: Kind, root: Path) -> Kind:
    """Return the same gateway of another checkout, started as that checkout's own bench starts it."""

    def command(port: int, pods: Sequence[str], folder: Path) -> list[str]:
        words = [sys.executable, "-c", COMMAND_OF, kind.name, str(port), str(folder), *pods]
        printed = subprocess.run(words, cwd=root, check=True, capture_output=True, text=True).stdout
        return [str(word) for word in json.loads(printed)]

    return replace(kind, name=f"{kind.name}, then", root=root, command=command)


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """The files of another commit in a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        yield Path(folder)


def has_commit(commit: str) -> bool:
    """Whether git can produce the files of a commit: a shallow clone, or an archive without git, cannot."""
    try:
        found = subprocess.run(
            ["git", "cat-file", "-e", f"{commit}^{{tree}}"], cwd=ROOT, check=False, capture_output=True
        )
    except OSError:
        return False
    return found.returncode == 0


def verdict(
    figures: Mapping[tuple[str, str], Sequence[float]], pairs: Sequence[tuple[str, str]], commit: str
) -> tuple[str, bool]:
    """The table, and whether no row is worse."""
    now = _commit("HEAD") + (" and uncommitted changes" if _output_of("git", "status", "--porcelain", "-uno") else "")
    machine = f"{os.cpu_count()} shared cores, {platform.python_implementation()} {platform.python_version()}"
    lines = [f"bench-paired, {datetime.now(UTC):%Y-%m-%d}, {machine}", f"now {now}, then {_commit(commit)}", ""]
    all_met = True
    heads = {column.key: column.head for column in report.COLUMNS}
    for new, old in pairs:
        for row in ROWS:
            ours, theirs = figures.get((new, row), ()), figures.get((old, row), ())
            ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
            if not ratios:
                continue
            low, high = median_interval(ratios)
            # Three rounds bound no median: the memory of streams hardly varies, and is judged by its largest ratio.
            is_met = high < NOT_WORSE
            all_met &= is_met
            lines.append(
                f"{'ok   ' if is_met else 'SHORT'} {new}, {heads[row]}: wanted below {NOT_WORSE}, measured"
                f" {median(ratios):.3f} ({low:.3f} to {high:.3f}, {len(ratios)} rounds;"
                f" {median(ours):.2f} against {median(theirs):.2f})"
            )
    return "\n".join(lines), all_met


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The narrowest pair of order statistics that holds the median with 95 % probability; the extremes for few values.

    The number of values below the median is binomial with one half.
    """
    ordered, count = sorted(values), len(values)
    for left_out in range(count // 2, 0, -1):
        outside = 2 * sum(comb(count, k) for k in range(left_out)) / 2**count
        if outside <= 1 - CONFIDENCE:
            return ordered[left_out - 1], ordered[count - left_out]
    return ordered[0], ordered[-1]


def _commit(name: str) -> str:
    return _output_of("git", "rev-parse", "--short", name)


def _output_of(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
