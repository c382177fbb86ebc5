"""What a run came to: met objectives, first tokens, and how often roles changed."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from statistics import median

from bench.pd.workloads import Workload
from simulator.records import Record, Replay
from simulator.spread import spread_of

BACK_S = 60.0
"""An engine that returns to its role within this time has flapped."""


@dataclass(frozen=True, slots=True)
class Figures:
    """`goodput`: requests whose first token and whose pace met the objective, over all that were offered."""

    goodput: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    split: float
    """The share of requests whose prefill was done elsewhere."""
    changes: int = 0
    flaps: int = 0
    by_kind: dict[str, float] = field(default_factory=dict)
    """Goodput by kind of phase."""


def figures_of(workload: Workload, replay: Replay) -> Figures:
    """Of one replay."""
    answered = [record for record in replay.records if record.is_answered]
    ttft = spread_of([record.ttft_s for record in answered if record.ttft_s is not None])
    tpot = spread_of([record.tpot_s for record in answered if record.tpot_s is not None])
    return Figures(
        goodput=sum(_is_good(workload, record) for record in replay.records) / len(replay.records),
        ttft_p50=ttft.p50,
        ttft_p90=ttft.p90,
        ttft_p99=ttft.p99,
        tpot_p50=tpot.p50,
        tpot_p99=tpot.p99,
        split=sum(record.prefill_pod is not None for record in replay.records) / len(replay.records),
        changes=len(replay.role_changes),
        flaps=_flaps(replay),
        by_kind=_by_kind(workload, replay),
    )


def middle(runs: list[Figures]) -> Figures:
    """The median of seeds, each figure by itself."""
    names = ("goodput", "ttft_p50", "ttft_p90", "ttft_p99", "tpot_p50", "tpot_p99", "split")
    kinds = {kind: median(run.by_kind[kind] for run in runs) for kind in runs[0].by_kind}
    figures = {name: median(getattr(run, name) for run in runs) for name in names}
    changes, flaps = max(run.changes for run in runs), max(run.flaps for run in runs)
    return Figures(**figures, changes=changes, flaps=flaps, by_kind=kinds)


def _is_good(workload: Workload, record: Record) -> bool:
    if not record.is_answered or record.ttft_s is None:
        return False
    return record.ttft_s <= workload.ttft_s and (record.tpot_s or 0.0) <= workload.tpot_s


def _by_kind(workload: Workload, replay: Replay) -> dict[str, float]:
    begins = [at_s for at_s, _ in workload.phases]
    good: Counter[str] = Counter()
    offered: Counter[str] = Counter()
    for record in replay.records if begins else ():
        kind = workload.phases[bisect_right(begins, record.arrived_s) - 1][1]
        offered[kind] += 1
        good[kind] += _is_good(workload, record)
    return {kind: good[kind] / offered[kind] for kind in offered}


def _flaps(replay: Replay) -> int:
    """How often an engine went back to a role that it had left a short while before."""
    last: dict[str, float] = {}
    flaps = 0
    for at_s, engine, _ in replay.role_changes:
        flaps += at_s - last.get(engine, -BACK_S) < BACK_S
        last[engine] = at_s
    return flaps
