"""Prints what a decision costs, and whether that is little enough.

Times are medians, in microseconds and as multiples of a loop of plain Python timed in between, so that a busy machine
does not decide. No HTTP.

    python -m bench.decide [--quick] [--keep FILE]
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import median

from bench.decide.admission import AdmissionRow, admission_table, measure_row
from bench.decide.cases import Case, measure, table
from bench.decide.remote import REPLICAS, Remote, measure_remote, remote_table

PODS = (8, 100, 1_000)
TOKENS = (1_000, 8_000, 32_000, 128_000, 1_000_000)
ADMISSION_TOKENS = 8_000
REPEATS = 3
"""Scenes per case: the one least disturbed by neighbours counts."""
LONG = 128_000
"""Tokens from which on fewer decisions are timed."""

METHOD = """\
Every engine holds the system prompt (an eighth of each prompt), its cache is full, so that each new block displaces an
old one; 6 sequences run on it, every other engine has one in prefill, and a scrape says what others have put there.
turn: the next turn of a conversation, 31 parts of 32 warm where its last turn was; new: only the system prompt is warm.
us: hash + decide. hash: cut and hash the prompt. walk: the look-up alone, part of decide. decide: look up, score,
choose, charge. x loop: in multiples of 1,000 rounds of `total += i * i`. Medians; turns and new ones come mixed, in
bursts of 8; of three scenes the least disturbed.\
"""

METHOD_ADMISSION = """\
With admission: the same with three tiers; all that runs was promised something, an engine gets a request a second.
admission: at the door, the decision with its gate, service charged, streams accounted for. A scene with and one without
take turns in one run; barred: requests that no engine might take, placed all the same. Of three runs the middle one.\
"""

METHOD_REMOTE = """\
A request of another gateway: its updates from placement to end, decoded and applied, beside what its decision cost.
Batches of two requests; turns and new ones in equal parts; others: how many gateways send them. look: the look-up of a
prompt at the receiver, for one request in as many as there are gateways; it unpacks what the prompt shares with others.
bytes: a request on the wire. Means without the longest 2 %, in caches that hold only requests of others. Of three runs
the least.\
"""


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that is wanted, and what was found."""

    wanted: str
    limit: float
    found: float
    unit: str

    @property
    def is_met(self) -> bool:
        return self.found <= self.limit

    def __str__(self) -> str:
        verdict = "ok   " if self.is_met else "SHORT"
        return f"{verdict} {self.wanted}: wanted at most {self.limit:g} {self.unit}, found {self.found:.2f}"


def targets(cases: Sequence[Case]) -> list[Target]:
    """What issue and design ask of a decision. The worse of the two kinds counts."""
    at = {(case.pods, case.tokens): case for case in cases}
    few, many = PODS[0], PODS[-1]
    short, long = TOKENS[0], TOKENS[-1]
    grown = [at[pods, long].worst_us - at[pods, short].worst_us for pods in (few, many)]
    return [
        Target("100 pods, 8k tokens", 80, at[100, 8_000].worst_us, "us"),
        Target("1,000 pods, 1M tokens", 5_000, at[1_000, 1_000_000].worst_us, "us"),
        Target(
            f"what {long:,} tokens cost more than {short:,}, at {many:,} pods against {few}",
            5,
            grown[1] / grown[0],
            f"times (blocks x pods would be {many // few})",
        ),
    ]


def admission_target(rows: Sequence[AdmissionRow]) -> Target:
    """What admission may add."""
    (at_hundred,) = (row for row in rows if row.pods == 100)
    return Target("100 pods, 8k tokens, with admission", 1.2, at_hundred.times, "times one without")


def machine() -> str:
    """In words that name no machine."""
    return f"{os.cpu_count()} shared cores, {platform.python_implementation()} {platform.python_version()}"


def decisions(rounds: int) -> Iterator[Case]:
    for pods in PODS:
        for tokens in TOKENS:
            print(f"{pods} pods, {tokens:,} tokens ...", file=sys.stderr)
            runs = [measure(pods, tokens, min(rounds, 20) if tokens >= LONG else rounds) for _ in range(REPEATS)]
            yield min(runs, key=lambda run: run.worst_us)


def measure_admission(rounds: int) -> Iterator[AdmissionRow]:
    for pods in PODS:
        print(f"{pods} pods, with admission ...", file=sys.stderr)
        runs = [measure_row(pods, ADMISSION_TOKENS, rounds) for _ in range(REPEATS)]
        yield sorted(runs, key=lambda run: run.times)[REPEATS // 2]


def remotes(rounds: int) -> Iterator[Remote]:
    for pods, replicas in product(PODS[:2], REPLICAS):
        print(f"{pods} pods, remote, {replicas} others ...", file=sys.stderr)
        runs = [measure_remote(pods, ADMISSION_TOKENS, replicas, 4 * rounds) for _ in range(REPEATS)]
        yield min(runs, key=lambda run: run.remote_us)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.decide", description="What a decision costs.")
    parser.add_argument("--quick", action="store_true", help="a third of the decisions")
    parser.add_argument("--only", choices=("routing", "admission", "remote"), help="one of the tables")
    parser.add_argument("--keep", type=Path, help="write what is printed to this file too")
    options = parser.parse_args(arguments)
    rounds = 20 if options.quick else 60
    parts, found = [f"bench-decide, {datetime.now(UTC):%Y-%m-%d}, {machine()}"], list[Target]()
    if options.only in (None, "routing"):
        cases = list(decisions(rounds))
        loop_us = median(case.loop_us for case in cases)
        parts[0] += f"; one loop took {loop_us:.1f} us"
        parts += [METHOD, table(cases)]
        found += targets(cases)
    if options.only in (None, "admission"):
        rows = list(measure_admission(rounds))
        parts += [METHOD_ADMISSION, admission_table(rows)]
        found += [admission_target(rows)]
    if options.only in (None, "remote"):
        parts += [METHOD_REMOTE, remote_table(list(remotes(rounds)))]
    report = "\n\n".join([*parts, "\n".join(map(str, found))])
    print(report)
    if options.keep:
        options.keep.write_text(report + "\n")
    return 0 if all(target.is_met for target in found) else 1


if __name__ == "__main__":
    sys.exit(main())
