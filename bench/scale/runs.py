"""Plays one case with every scaler. A function of case name and seed, so that processes can share the work."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from random import Random

from bench.scale.cases import Case, cases
from bench.scale.clairvoyant import clairvoyant
from bench.scale.fleet import Cluster, Played, Scaler, play
from bench.scale.scalers import Fixed, Hpa, Ours, QueueRule
from bench.scale.traffic import DAY_S, Rate, draw, history_of
from supply.expectation import REACTION_S

OURS = "Hearth"
REACTIVE = "Hearth, no forecast"
UNFOLDED = "Hearth, retries counted each time"
CLAIRVOYANT = "clairvoyant"
FIXED = "fixed, equal cost"
IN_FLIGHT = 4.0
"""Requests an engine of the queue rule: of 3 to 6, the one with the best attainment at the least cost on seed 1."""


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one scaler in one case."""

    scaler: str
    attainment: float
    by_tier: tuple[float, ...]
    engine_hours: float
    peak: int
    wanted: int
    changes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """All figures of one case and seed."""

    case: str
    seed: int
    requests: int
    full_fleet: float
    """Attainment of the largest fleet."""
    rows: tuple[Row, ...]

    def of(self, scaler: str) -> Row:
        """Return the row of a scaler."""
        return next(row for row in self.rows if row.scaler == scaler)


def write_outcome(outcome: Outcome) -> str:
    """Return the figures as JSON."""
    return json.dumps(asdict(outcome))


def read_outcome(text: str) -> Outcome:
    """Return the figures of `write_outcome`."""
    given = json.loads(text)
    rows = tuple(Row(**{**row, "by_tier": tuple(row["by_tier"])}) for row in given.pop("rows"))
    return Outcome(rows=rows, **given)


def play_case(name: str, seed: int, traces: str) -> Outcome:
    """Play one case with each scaler."""
    case = next(one for one in cases(Path(traces)) if one.name == name)
    random = Random(f"{name} {seed}")
    rate = case.rate(random)
    arrivals = draw(rate, case.seconds, case.sizes, random)
    cluster = case.cluster
    bound = clairvoyant(arrivals, case.seconds, cluster)
    initial = bound.played.counts[0]
    rows = [_row(CLAIRVOYANT, bound.played)]
    contenders: list[Scaler] = [
        _ours(case, OURS, rate, seed),
        _ours(case, REACTIVE, rate, seed, use_forecast=False),
    ]
    if case.loop is not None:
        contenders.append(_ours(case, UNFOLDED, rate, seed, counts_retries=True))
    contenders += [Hpa(), QueueRule(IN_FLIGHT)]
    for scaler in contenders:
        played = play(arrivals, case.seconds, cluster, scaler, initial, case.loop)
        rows.append(_row(scaler.name, played))
        if isinstance(scaler, Ours):
            print(f"{name} {seed} {scaler.name}: {dict(scaler.reasons)}", file=sys.stderr)
    equal = max(ceil(rows[1].engine_hours * 3_600 / case.seconds), 1)
    rows.append(_row(FIXED, play(arrivals, case.seconds, _without_grants(cluster), Fixed(equal), equal)))
    return Outcome(name, seed, len(arrivals), bound.best, tuple(rows))


def _without_grants(cluster: Cluster) -> Cluster:
    return Cluster(cluster.start_s, cluster.estimate_s, cluster.max_engines)


def _ours(
    case: Case, name: str, rate: Rate, seed: int, *, use_forecast: bool = True, counts_retries: bool = False
) -> Ours:
    """Return the scaler after the days before the measured period."""
    scaler = Ours(
        name,
        case.sizes,
        max_engines=case.cluster.max_engines,
        use_forecast=use_forecast,
        counts_retries=counts_retries,
        clock=case.clock,
    )
    history = history_of(rate, case.history_days * DAY_S, case.sizes, Random(f"history {case.name} {seed}"))
    scaler.learn(history, REACTION_S + case.cluster.start_s)
    return scaler


def _row(name: str, played: Played) -> Row:
    by_tier = tuple(met / max(offered, 1) for met, offered in played.by_tier)
    return Row(name, played.attainment, by_tier, played.engine_hours, played.peak, played.max_wanted, played.changes)
