"""Diagnosis beside injected faults: `make bench-doctor`.

Each case is a fleet of 14 simulated pods in virtual time. A table of confusions, the targets, and the hours without a
fault are printed; `--keep FILE` writes them too. The seeds of the kept table are not those that recipes were made with.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

from bench.commit import measured_commit
from bench.doctor.cases import CLEARED_WITHIN_S, Verdict, learn_baseline
from bench.doctor.constrained import PRICED, SETUPS, ConstrainedRun, constrained_rows, lost_share
from bench.doctor.faults import CHANGES, FAULTS, POOL_OF
from bench.doctor.healthy import HealthyHours
from bench.doctor.playing import play_one
from bench.target import Target
from diagnosis.baseline import Baseline, dump_baseline, load_baseline

FIRST_SEED = 101
"""Seeds below were used while recipes were written."""

BASELINE_SEED = 99

KINDS = ("constrained", "pair", "change", "healthy", "fault")
"""Kinds of cases."""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this bench."""
    parser = argparse.ArgumentParser(prog="python -m bench.doctor", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="seeds of each fault (default 5)")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--pairs", type=int, default=20, help="cases of two faults at once (default 20)")
    parser.add_argument("--hours", type=float, default=20.0, help="virtual hours without a fault (default 20)")
    parser.add_argument("--only", action="append", metavar="FAULT", help="these faults only")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="these cases only")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, metavar="FILE")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="learn the baseline once, and keep it there")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="write each result there, and skip those it has")
    parser.add_argument("--table", action="store_true", help="print the table of what the file of --resume has")
    return parser


def jobs_of(options: argparse.Namespace, baseline: Baseline) -> list[tuple[Any, ...]]:
    """Return all cases."""
    document = dump_baseline(baseline)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    names = options.only or [fault.name for fault in FAULTS]
    jobs: list[tuple[Any, ...]] = [("fault", name, seed, document) for seed in seeds for name in names]
    if options.only:
        return jobs
    draws = Random(options.first_seed)
    for number in range(options.pairs):
        one, other = draws.sample(FAULTS, 2)
        while POOL_OF[one.name] == POOL_OF[other.name]:
            one, other = draws.sample(FAULTS, 2)
        jobs.append(("pair", (one.name, other.name), options.first_seed + number, document))
    jobs += [("change", name, seed, document) for seed in seeds for name in CHANGES]
    jobs += [("constrained", setup, seed, document) for seed in seeds for setup in SETUPS]
    parts = max(round(options.hours), 1)
    if options.hours > 0:
        jobs += [("healthy", options.hours / parts, options.first_seed + part, document) for part in range(parts)]
    return [job for job in jobs if job[0] in options.kinds]


def table(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the confusion table: what was injected, and what was found first how often."""
    lines = [f"{'injected':<42} {'named':>7} {'after s':>8} {'cleared':>8}  found first instead"]
    for case in dict.fromkeys(each.case for each in verdicts):
        rows = [each for each in verdicts if each.case == case]
        right = sum(each.is_right for each in rows)
        after = [each.named_after_s for each in rows if each.named_after_s is not None]
        gone = [each.cleared_after_s for each in rows if each.cleared_after_s is not None]
        wrong = Counter(
            each.found if each.found not in each.expected else f"{each.found} on another pod"
            for each in rows
            if not each.is_right
        )
        lines.append(
            f"{case:<42} {right:>3}/{len(rows):<3} {max(after, default=float('nan')):>8.0f} "
            f"{max(gone, default=float('nan')):>8.0f}  {', '.join(f'{name} x{count}' for name, count in wrong.items())}"
        )
    return lines


def shares(title: str, verdicts: Sequence[Verdict]) -> str:
    """Return one line: right, unknown, confidently wrong."""
    count = max(len(verdicts), 1)
    right = sum(each.is_right for each in verdicts)
    wrong = sum(each.is_confidently_wrong for each in verdicts)
    return f"{title:<42} {right}/{len(verdicts)} right, {wrong} confidently wrong ({wrong / count:.1%})"


def wrong_share(verdicts: Sequence[Verdict]) -> float:
    """Return the share of confidently wrong answers."""
    return sum(each.is_confidently_wrong for each in verdicts) / max(len(verdicts), 1)


def report(results: Iterable[tuple[str, Any]]) -> tuple[list[str], list[Target]]:
    """Return the text, and what it is held to."""
    full: list[Verdict] = []
    half: list[Verdict] = []
    pairs: list[Verdict] = []
    changes: list[Verdict] = []
    healthy: list[HealthyHours] = []
    constrained: list[ConstrainedRun] = []
    for kind, result in results:
        if kind == "fault":
            full.append(result[0])
            half.append(result[1])
        else:
            others: dict[str, list[Any]] = {
                "pair": pairs,
                "change": changes,
                "healthy": healthy,
                "constrained": constrained,
            }
            others[kind].append(result)
    lines: list[str] = []
    targets: list[Target] = []
    if full:
        lines += table(full)
        lines += ["", *(shares(*each) for each in (("all figures", full), ("half of the figures missing", half)))]
        targets += [
            Target("share of faults named first, with the right pod", 0.95, _right(full), is_minimum=True),
            Target("confidently wrong with half of the figures missing", 0.05, wrong_share(half)),
            Target("seconds until the last fault's finding was cleared", CLEARED_WITHIN_S, _last_cleared(full)),
        ]
    if pairs:
        both = sum(set(each.expected) <= {each.found, *each.others} for each in pairs)
        lines += [shares("two faults at once (either may be first)", pairs), f"{'':<42} {both} times both were found"]
        targets.append(Target("confidently wrong with two faults at once", 0.05, wrong_share(pairs)))
        lines += [f"    {each.case}: {each.found}" for each in pairs if not each.is_right]
    if changes:
        lines.append(shares("changed workload without a fault", changes))
        questions = Counter((each.case, each.first_question) for each in changes)
        lines += [f"    {case}: first question {answer} x{count}" for (case, answer), count in questions.items()]
        lines += [f"    {each.case}: {each.found}" for each in changes if not each.is_right]
        targets.append(Target("confidently wrong after a changed workload", 0.05, wrong_share(changes)))
    early = [name for each in (*full, *pairs, *changes) for name in each.false_before]
    lines.append(f"{'before anything was injected':<42} {len(early)} findings {sorted(set(early))}")
    if constrained:
        lines += constrained_rows(constrained)
        wanted = "time a token of priced constrained requests by that where no pod speculates"
        targets.append(Target(wanted, 1.05, lost_share(constrained, PRICED)))
    if healthy:
        hours, found = sum(each.hours for each in healthy), [name for each in healthy for name in each.found]
        churned, answered = sum(each.churned for each in healthy), sum(each.requests for each in healthy)
        lines.append(f"healthy: {hours:.1f} virtual hours, {answered:,} requests, {churned} pods churned")
        lines += [f"    {name}" for name in found]
        targets.append(Target("findings in healthy hours", 0.0, float(len(found))))
    return lines, targets


def _right(verdicts: Sequence[Verdict]) -> float:
    return sum(each.is_right for each in verdicts) / max(len(verdicts), 1)


def _last_cleared(verdicts: Sequence[Verdict]) -> float:
    lasting = {fault.name for fault in FAULTS if fault.lingers}
    named = [each for each in verdicts if each.found in each.expected and each.case not in lasting]
    return max((each.cleared_after_s or float("inf") for each in named), default=0.0)


def known_baseline(path: Path | None) -> Baseline:
    """Return the baseline of a healthy fleet, of a file where it has one."""
    if path is not None and path.exists():
        return load_baseline(json.loads(path.read_text(encoding="utf-8")))
    baseline = learn_baseline(BASELINE_SEED)
    if path is not None:
        path.write_text(json.dumps(dump_baseline(baseline)), encoding="utf-8")
    return baseline


def to_json(result: Any) -> Any:
    """Return a result as JSON values."""
    return [to_json(each) for each in result] if isinstance(result, tuple) else result and asdict(result)


def from_json(document: Any) -> Any:
    """Return the result of JSON values."""
    if isinstance(document, list):
        return tuple(from_json(each) for each in document)
    if document is None:
        return None
    values: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in document.items()}
    if "setup" in values:
        return ConstrainedRun(**values)
    return HealthyHours(**values) if "hours" in values else Verdict(**values)


def known_results(path: Path | None, jobs: Sequence[tuple[Any, ...]]) -> tuple[list[tuple[str, Any]], list[Any]]:
    """Return the results that a file has, and the jobs that are left."""
    if path is None or not path.exists():
        return [], list(jobs)
    held: dict[str, Any] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        *job, result = json.loads(line)
        held[json.dumps(job)] = result
    done = [(job[0], from_json(held[json.dumps(job[:3])])) for job in jobs if json.dumps(job[:3]) in held]
    return done, [job for job in jobs if json.dumps(job[:3]) not in held]


def head(options: argparse.Namespace, jobs: Sequence[tuple[Any, ...]]) -> str:
    """Return the first line of the table: when, what and where, and how many cases of each kind it has."""
    cases = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(job[0] for job in jobs).items()))
    return (
        f"bench-doctor, {datetime.now(UTC):%Y-%m-%d}, commit {measured_commit()}, {os.cpu_count()} shared cores, "
        f"CPython {platform.python_version()}, seeds from {options.first_seed}: {cases}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cases; 1 where a target is missed."""
    options = make_parser().parse_args(arguments)
    jobs = jobs_of(options, known_baseline(options.baseline))
    results, rest = known_results(options.resume, jobs)
    if options.table:
        jobs, rest = [job for job in jobs if job not in rest], []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for job, result in zip(rest, pool.map(play_one, rest), strict=True):
            results.append((job[0], result))
            print(f"{len(results)}/{len(jobs)} {job[0]} {job[1]} {job[2]}", file=sys.stderr)
            if options.resume:
                with options.resume.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([*job[:3], to_json(result)]) + "\n")
    lines, targets = report(results)
    text = "\n".join((head(options, jobs), "", *lines, "", *map(str, targets))) + "\n"
    print(text)
    if options.keep:
        options.keep.write_text(text, encoding="utf-8")
    return 0 if all(target.is_met for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
