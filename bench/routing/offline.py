"""The policies side by side in virtual time: medians of seeds, and the clairvoyant bound of hits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from bench.routing.loads import COARSE, JITTER_S, PODS, Load
from bench.routing.rows import Row, middle, row_of
from simulator.policies.bound import clairvoyant_ratio
from simulator.policies.registry import COMPARED
from simulator.replay import Setting, play
from simulator.report import report_on
from simulator.traces import Trace

BOUND = "clairvoyant bound"


@dataclass(frozen=True, slots=True)
class Offline:
    """One trace: a row a policy, and the most hits that any could have."""

    load: Load
    rows: tuple[Row, ...]
    bound: float


def compare(load: Load, seeds: int, workers: int, names: Sequence[str] = COMPARED) -> Offline:
    """Play every policy once per seed, on `workers` cores."""
    trace = load.trace()
    jobs = [(trace, name, seed) for name in names for seed in range(seeds)]
    with ProcessPoolExecutor(workers) as pool:
        played = []
        for number, row in enumerate(pool.map(_play, jobs), 1):
            played.append(row)
            if number % seeds == 0:
                print(f"{load.name}, virtual: {row.name} done", file=sys.stderr, flush=True)
    rows = tuple(middle([row for row in played if row.name == name]) for name in names)
    return Offline(load, rows, clairvoyant_ratio(trace, PODS * COARSE.kv_capacity_tokens))


def _play(job: tuple[Trace, str, int]) -> Row:
    trace, name, seed = job
    replay = play(trace.jittered(JITTER_S, seed), Setting(name, PODS, COARSE, seed))
    return row_of(name, report_on(replay, COARSE))
