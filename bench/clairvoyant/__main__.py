"""Searches for the best placement of each traffic and keeps it; or compares all policies with what was kept.

    python -m bench.clairvoyant search [--only NAME ...] [--minutes M]   improves bench/clairvoyant/best.json
    python -m bench.clairvoyant compare [--only NAME ...] [--policies NAME ...] [--runs N] [--keep FILE]
                                                                         the table: lateness and regret of each policy

`search` begins with the best of the kept placement and of every policy's (ours of several runs): what it keeps is never
worse than any of them. Its minutes are those of the processor. `compare` plays the kept placements anew, so its figures
always belong to the engines of this checkout. With `--runs` above 1 each policy is played so often, with arrivals moved
by up to 20 ms from the second run on: figures are means, and `sd` says how much lateness differs from run to run by
chance.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import os
import platform
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import msgspec

from bench.clairvoyant.bound import lower_bound_s
from bench.clairvoyant.schedule import Schedule, lateness_of, play_schedule
from bench.clairvoyant.search import HOLDS_S, Effort, Search
from bench.clairvoyant.traffic import ENGINES, PROFILE, SEARCH_BLOCK, TRAFFICS
from simulator.policies.registry import COMPARED, OURS
from simulator.records import Record
from simulator.replay import Setting, play
from simulator.spread import spread_of
from simulator.traces import Trace

KEPT = Path(__file__).with_name("best.json")

OUR_STARTS = 4
"""Runs of our own routing, with other draws, with whose placements a search may begin."""

SWEEPS = 4

MOVED_S = 0.02
"""By how much arrivals are moved from the second run on: conversations then part elsewhere."""

_POLICIES = [policy for policy in COMPARED if policy != "round-robin"]


class Best(msgspec.Struct):
    """The best placement found of one traffic."""

    requests: int
    found: str
    """Date and minutes of the last search that improved it."""
    lateness_s: float
    engines: str
    """One digit per request, compressed (gzip, base64)."""
    holds: str
    """One index into HOLDS_S per request, compressed."""


@dataclass(frozen=True, slots=True)
class Line:
    """One row: a policy, or the best placement found."""

    name: str
    lateness_s: float
    ttft_mean_s: float
    ttft_p95_s: float
    hit: float
    tpot_p99_s: float
    failed: int
    lateness_sd_s: float = 0.0
    """From run to run; 0 for one."""


def line_of(name: str, records: Sequence[Record]) -> Line:
    """Return the figures of one replay; requests that failed count in `failed` only."""
    answered = [one for one in records if one.is_answered]
    ttft = spread_of(one.ttft_s or 0.0 for one in answered)
    return Line(
        name,
        sum(map(lateness_of, answered)) / len(answered),
        ttft.mean,
        ttft.p95,
        sum(one.cached_tokens or 0 for one in answered) / sum(one.prompt_tokens for one in answered),
        spread_of(one.tpot_s for one in answered if one.tpot_s is not None).p99,
        len(records) - len(answered),
    )


def mean_line(lines: Sequence[Line]) -> Line:
    """Return the means over several runs of one policy, all their failed requests, and by how much lateness differs."""
    if len(lines) == 1:
        return lines[0]
    means: dict[str, Any] = {
        one.name: fmean(getattr(line, one.name) for line in lines) for one in fields(Line) if one.name != "name"
    }
    means |= {"failed": sum(line.failed for line in lines), "lateness_sd_s": stdev(line.lateness_s for line in lines)}
    return Line(lines[0].name, **means)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.clairvoyant", description=__doc__)
    parser.add_argument("action", choices=("search", "compare"))
    parser.add_argument("--only", nargs="+", choices=list(TRAFFICS), default=list(TRAFFICS))
    parser.add_argument("--minutes", type=float, default=30.0, help="of search per traffic")
    parser.add_argument("--policies", nargs="+", choices=_POLICIES, default=_POLICIES)
    parser.add_argument("--runs", type=int, default=1, help="of each policy")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    options = parser.parse_args()
    if options.action == "search":
        return _search_all(options.only, options.minutes, options.jobs)
    return _compare(options.only, options.policies, options.runs, options.jobs, options.keep)


def _search_all(names: Sequence[str], minutes: float, jobs: int) -> int:
    with ProcessPoolExecutor(jobs) as pool:
        for name, best in zip(names, pool.map(_search, names, [minutes] * len(names)), strict=True):
            kept = read_kept()
            if name not in kept or best.lateness_s < kept[name].lateness_s:
                kept[name] = best
                KEPT.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n")
            print(f"{name}: {best.lateness_s:.4f} s", file=sys.stderr, flush=True)
    return 0


def _search(name: str, minutes: float) -> Best:
    trace = TRAFFICS[name]()
    start = best_start(name, trace)
    search = Search(trace, replace(PROFILE, block_size=SEARCH_BLOCK), ENGINES, start)
    best, best_s = start, _mean_s(play_schedule(trace, PROFILE, start, ENGINES))
    print(f"{name}: begins with {best_s:.4f} s", file=sys.stderr, flush=True)
    for sweep in range(SWEEPS):
        search.sweep(Effort(minutes * 60 / SWEEPS, seed=sweep))
        found_s = _mean_s(play_schedule(trace, PROFILE, search.schedule, ENGINES))
        print(f"{name}: {search.tried} tried, {search.kept} kept, {found_s:.4f} s", file=sys.stderr, flush=True)
        if found_s < best_s:
            best, best_s = search.schedule, found_s
    return Best(
        len(trace.arrivals),
        f"{datetime.now(UTC):%Y-%m-%d}, {minutes:g} minutes",
        best_s,
        _pack(bytes(best.engines)),
        _pack(bytes(map(HOLDS_S.index, best.holds_s))),
    )


def best_start(name: str, trace: Trace) -> Schedule:
    """Return the best placement known: the kept one, or one that a policy made of these requests."""
    schedules = []
    if (kept := read_kept().get(name)) is not None and kept.requests == len(trace.arrivals):
        schedules.append(schedule_of(kept))
    jobs = [(policy, 0) for policy in _POLICIES] + [(OURS, run) for run in range(1, OUR_STARTS)]
    schedules += [found for policy, run in jobs if (found := placement_of(trace, policy, run)) is not None]
    return min(schedules, key=lambda one: _mean_s(play_schedule(trace, PROFILE, one, ENGINES)))


def placement_of(trace: Trace, policy: str, run: int) -> Schedule | None:
    """Return where a policy put each request, ties drawn from seed `run`; None where a request failed."""
    records = play(trace, Setting(policy, ENGINES, PROFILE, run)).records
    if not all(one.is_answered for one in records):
        return None
    places = tuple(int((one.pod or "").removeprefix("pod-").partition("#")[0]) for one in records)
    return Schedule(places, (0.0,) * len(places))


def _mean_s(records: Sequence[Record]) -> float:
    return sum(map(lateness_of, records)) / len(records)


def _pack(numbers: bytes) -> str:
    return base64.b64encode(gzip.compress(numbers, mtime=0)).decode()


def _unpack(text: str) -> bytes:
    return gzip.decompress(base64.b64decode(text))


def schedule_of(best: Best) -> Schedule:
    """Return a kept placement."""
    return Schedule(tuple(_unpack(best.engines)), tuple(HOLDS_S[index] for index in _unpack(best.holds)))


def read_kept() -> dict[str, Best]:
    """Return the kept placements by traffic; empty where none were kept."""
    return msgspec.json.decode(KEPT.read_bytes(), type=dict[str, Best]) if KEPT.exists() else {}


def _compare(names: Sequence[str], policies: Sequence[str], runs: int, jobs: int, keep: Path | None) -> int:
    kept = read_kept()
    text = [
        f"bench-clairvoyant, {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, CPython {platform.python_version()}",
        "",
    ]
    text += [
        f"{ENGINES} simulated engines. Lateness: TTFT plus the seconds by which a stream ends behind 20 tokens/s,",
        "mean over requests. Regret: lateness above that of the best placement found by a search that knows arrivals,",
        f"lengths and reuse. No placement can be below the bound. Virtual time; runs of each policy: {runs}.",
    ]
    beaten = True
    with ProcessPoolExecutor(jobs) as pool:
        for name in names:
            trace = TRAFFICS[name]()
            played = pool.map(_play, [(name, policy, run) for policy in policies for run in range(runs)])
            lines = [mean_line(group) for group in zip(*[played] * runs, strict=True)]
            best = line_of("best found", play_schedule(trace, PROFILE, schedule_of(kept[name]), ENGINES))
            bound_s = lower_bound_s(trace, PROFILE, ENGINES)
            text += ["", f"{name}: {len(trace.arrivals)} requests in {trace.length_s:.0f} s; bound {bound_s:.3f} s"]
            text += [
                _HEAD,
                *(_row_text(line, best) for line in [*sorted(lines, key=lambda line: -line.lateness_s), best]),
            ]
            beaten = beaten and best.lateness_s < min(line.lateness_s for line in lines if not line.failed)
            print("\n".join(text[-len(lines) - 4 :]), file=sys.stderr, flush=True)
    text += ["", f"{'ok   ' if beaten else 'SHORT'} the best placement found beats every policy on every traffic"]
    print("\n".join(text))
    if keep is not None:
        keep.write_text("\n".join(text) + "\n", encoding="utf-8")
    return 0 if beaten else 1


def _play(job: tuple[str, str, int]) -> Line:
    name, policy, run = job
    trace = TRAFFICS[name]().jittered(MOVED_S if run else 0.0, run)
    return line_of(policy, play(trace, Setting(policy, ENGINES, PROFILE, 0)).records)


_HEAD = (
    f"{'':20} {'lateness':>9} {'sd':>6} {'regret':>8} {'TTFT mean':>10} {'p95':>8} {'hit':>6}"
    f" {'TPOT p99 ms':>12} {'failed':>7}"
)


def _row_text(line: Line, best: Line) -> str:
    regret = line.lateness_s - best.lateness_s
    return (
        f"{line.name:20} {line.lateness_s:9.3f} {line.lateness_sd_s:6.3f} {regret:8.3f} {line.ttft_mean_s:10.3f}"
        f" {line.ttft_p95_s:8.2f} {line.hit:6.3f} {line.tpot_p99_s * 1000:12.0f} {line.failed:7}"
    )


if __name__ == "__main__":
    sys.exit(main())
