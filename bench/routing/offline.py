"""The policies side by side in virtual time: medians of seeds, and the clairvoyant bound of hits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from bench.routing.loads import COARSE_BLOCK, JITTER_S, PODS, Load
from bench.routing.rows import Row, middle, row_of
from simulator.command import SYNC_DELAY_S
from simulator.policies.bound import clairvoyant_ratio
from simulator.policies.registry import COMPARED, OURS
from simulator.profile import Profile
from simulator.replay import Setting, play
from simulator.report import report_on
from simulator.traces import Trace

BOUND = "clairvoyant bound"

IN_VIRTUAL_TIME = "hearth, the same in virtual time"


@dataclass(frozen=True, slots=True)
class Offline:
    """One trace: a row a policy, and the most hits that any could have."""

    load: Load
    rows: tuple[Row, ...]
    bound: float


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the table: a policy, through one gateway or several."""

    policy: str
    replicas: int = 1
    sync_delay_s: float | None = SYNC_DELAY_S
    max_seeds: int = 99
    """Of a row that only shows what is known, few will do."""
    knows_caches: bool = False
    """Whether the gateway sees what every engine holds: what a precise prefix index could be worth at most."""

    @property
    def name(self) -> str:
        """As the row is called."""
        if self.knows_caches:
            return f"{self.policy}, caches known"
        if self.replicas == 1:
            return self.policy
        label = "alone" if self.sync_delay_s is None else f"news {self.sync_delay_s * 1000:.0f} ms"
        return f"{self.policy}, {self.replicas} gateways, {label}"


REPLICAS = Entry(OURS, 16, max_seeds=3)

ENTRIES = (
    *map(Entry, COMPARED),
    Entry(OURS, knows_caches=True),
    Entry("weighted-3-1", 4, None, max_seeds=1),
    Entry(OURS, 4, None, max_seeds=1),
    Entry(OURS, 4, max_seeds=3),
    REPLICAS,
)


def compare(load: Load, engine: Profile, seeds: int, workers: int, entries: Sequence[Entry] = ENTRIES) -> Offline:
    """Play every entry once per seed, on `workers` cores."""
    trace = load.trace()
    coarse = replace(engine, block_size=COARSE_BLOCK)
    jobs = [(trace, coarse, entry, seed) for entry in entries for seed in range(min(seeds, entry.max_seeds))]
    with ProcessPoolExecutor(workers) as pool:
        played: list[Row] = []
        for row in pool.map(_play, jobs):
            if not played or played[-1].name != row.name:
                print(f"{load.name}, virtual: {row.name} ...", file=sys.stderr, flush=True)
            played.append(row)
    rows = tuple(middle([row for row in played if row.name == entry.name]) for entry in entries)
    return Offline(load, rows, clairvoyant_ratio(trace, PODS * coarse.kv_capacity_tokens))


def same_requests(load: Load, engine: Profile, seeds: int, requests: int | None) -> Row:
    """Play in virtual time what the live runs play: the same first requests, speed, jitter and engines. Medians."""
    played = []
    for seed in range(seeds):
        setting = Setting(OURS, PODS, engine, seed)
        played.append(row_of(IN_VIRTUAL_TIME, report_on(play(load.live_trace(seed, requests), setting), engine)))
    return middle(played)


def _play(job: tuple[Trace, Profile, Entry, int]) -> Row:
    trace, engine, entry, seed = job
    setting = Setting(entry.policy, PODS, engine, seed, replicas=entry.replicas, sync_delay_s=entry.sync_delay_s)
    setting = replace(setting, knows_caches=entry.knows_caches)
    return row_of(entry.name, report_on(play(trace.jittered(JITTER_S, seed), setting), engine))
