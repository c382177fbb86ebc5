"""What issue 4 asks of routing, one line each: wanted beside measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.routing.contenders import OURS, RIVALS_LIVE
from bench.routing.loads import Load
from bench.routing.rows import Row
from simulator.policies.registry import OURS as OUR_POLICY

NEAR = 1.03
"""Within 3 % of the best."""
HIT_OF_BEST = 0.9
REPLICA_HIT = 0.97
REPLICA_TTFT = 1.1

AGREEMENT = 0.1
"""How far live figures may be from those of the same requests in virtual time."""

Figure = Callable[[Row], float]

POINTS: Sequence[tuple[str, Figure]] = (
    ("p50", lambda row: row.ttft_p50),
    ("p95", lambda row: row.ttft_p95),
    ("p99", lambda row: row.ttft_p99),
)


@dataclass(frozen=True, slots=True)
class Target:
    """One target. `found` is None if it was not measured, and `why` says why."""

    wanted: str
    bound: float
    found: float | None
    is_minimum: bool = False
    why: str = ""

    @property
    def is_met(self) -> bool:
        if self.found is None:
            return False
        return self.found >= self.bound if self.is_minimum else self.found <= self.bound

    def __str__(self) -> str:
        relation = "at least" if self.is_minimum else "at most"
        if self.found is None:
            return f"SKIP  {self.wanted}: wanted {relation} {self.bound:.3f}: {self.why}"
        verdict = "ok   " if self.is_met else "SHORT"
        return f"{verdict} {self.wanted}: wanted {relation} {self.bound:.3f}, found {self.found:.3f}"


def offline_targets(load: Load, rows: Sequence[Row]) -> list[Target]:
    """Virtual time, medians of seeds."""
    ours, others = _split(rows, OUR_POLICY)

    def best(figure: Figure) -> tuple[float, str]:
        return min((figure(row), row.name) for row in others)

    found = []
    for relation, figure in POINTS:
        lowest, name = best(figure)
        found.append(Target(f"{load.name}, virtual, TTFT {relation} ({name} x {NEAR})", NEAR * lowest, figure(ours)))
    highest, name = best(lambda row: -row.hit)
    wanted = f"{load.name}, virtual, hit ({name} x {HIT_OF_BEST})"
    return [*found, Target(wanted, HIT_OF_BEST * -highest, ours.hit, is_minimum=True)]


def live_targets(load: Load, rows: Sequence[Row]) -> list[Target]:
    """Over HTTP, medians of runs, against the better rival in each figure."""
    rivals = [row for row in rows if row.name in RIVALS_LIVE]
    ours = next((row for row in rows if row.name == OURS), None)
    if not rivals or ours is None:
        return []
    found = [
        Target(
            f"{load.name}, live, hit (better rival x {load.hit_of_rival})",
            load.hit_of_rival * max(row.hit for row in rivals),
            ours.hit,
            is_minimum=True,
        )
    ]
    limits: Sequence[tuple[str, float, Figure]] = (
        ("wait mean", load.wait_of_rival, lambda row: row.wait_mean),
        ("TTFT p90", load.p90_of_rival, lambda row: row.ttft_p90),
        ("TTFT p99", load.p99_of_rival, lambda row: row.ttft_p99),
        ("TPOT p99", 1.0, lambda row: row.tpot_p99),
    )
    for relation, share, figure in limits:
        lowest = min(map(figure, rivals))
        found.append(Target(f"{load.name}, live, {relation} (better rival x {share:g})", share * lowest, figure(ours)))
    if load.max_imbalance is not None:
        found.append(Target(f"{load.name}, live, busiest pod by the mean", load.max_imbalance, ours.imbalance))
    if (factor := load.within_slo_of_rival) is not None:
        bound = factor * max(row.within_slo for row in rivals)
        wanted = f"{load.name}, live, share within SLO (better rival x {factor})"
        found.append(Target(wanted, bound, ours.within_slo, is_minimum=True))
    return [*found, Target(f"{load.name}, live, failed requests", 0, ours.failed)]


def agreement_targets(load: Load, live: Row, virtual: Row) -> list[Target]:
    """How far live figures are from those of the same requests in virtual time, as shares of the latter."""
    figures: Sequence[tuple[str, Figure]] = (
        ("TTFT mean", lambda row: row.ttft_mean),
        ("wait mean", lambda row: row.wait_mean),
        ("hit", lambda row: row.hit),
        ("imbalance", lambda row: row.imbalance),
    )
    return [
        Target(f"{load.name}, live and virtual, {name}: difference", AGREEMENT, abs(figure(live) / figure(virtual) - 1))
        for name, figure in figures
    ]


def replica_targets(load: Load, where: str, one: Row, many: Row | None, name: str, why: str = "") -> list[Target]:
    """Several gateways against one."""
    hit, late = REPLICA_HIT * one.hit, REPLICA_TTFT * one.ttft_p95
    here = f"{load.name}, {where}, {name}"
    return [
        Target(f"{here}: hit (one x {REPLICA_HIT})", hit, many.hit if many else None, is_minimum=True, why=why),
        Target(f"{here}: TTFT p95 (one x {REPLICA_TTFT})", late, many.ttft_p95 if many else None, why=why),
        Target(f"{here}: failed requests", 0, many.failed if many else None, why=why),
    ]


def _split(rows: Sequence[Row], name: str) -> tuple[Row, list[Row]]:
    """One's own row, and those of others: one's own rows under other circumstances are neither."""
    return next(row for row in rows if row.name == name), [row for row in rows if not row.name.startswith(name)]
