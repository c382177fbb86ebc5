"""How far simulated figures are from real ones, and real ones from each other. Numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.target import Target
from bench.truth.playing import Run, middle_figures

BOUNDS = {
    **dict.fromkeys(("ttft p50", "ttft p90", "tpot p50", "tpot p90", "throughput", "cached"), 0.10),
    **dict.fromkeys(("ttft p99", "tpot p99"), 0.20),
}
"""Median relative errors that are allowed, over all workloads."""

OWN_FACTOR = 1.5
"""Or so many times the engine's own error from repeat to repeat."""

MIN_ERROR = {"cached": 64.0}
"""What a real figure counts as at least: an error of two blocks of nothing is no error."""


OTHERS_SHARE = 0.5
"""Of a core: with more load beside them pods are not what was profiled."""


@dataclass(frozen=True, slots=True)
class Row:
    """One workload: what was predicted and what was seen, several times."""

    name: str
    requests: int
    simulated: Mapping[str, float]
    runs: Sequence[Run]

    @property
    def real(self) -> dict[str, float]:
        """The median of the repeats, figure by figure."""
        return middle_figures(self.runs)

    def error(self, figure: str) -> float:
        """Return (simulated - real) / real."""
        return relative(self.simulated[figure], self.real[figure], figure)

    def own_error(self, figure: str) -> float:
        """Return the engine's median deviation from the median of its repeats; 0 with one of them."""
        middle = self.real[figure]
        return median(abs(relative(run.figures[figure], middle, figure)) for run in self.runs)


def relative(value: float, real: float, figure: str) -> float:
    """Return the relative error of a value."""
    difference, floor = value - real, max(abs(real), MIN_ERROR.get(figure, 0.0))
    return difference / floor if floor else float(difference != 0)


def median_error(rows: Sequence[Row], figure: str) -> float:
    """Return the median absolute error of one figure."""
    return median(abs(row.error(figure)) for row in rows)


def targets_of(rows: Sequence[Row], min_workloads: int) -> Iterator[Target]:
    """What is wanted, one line each."""
    yield Target("workloads played", min_workloads, len(rows), is_minimum=True)
    if not rows:
        return
    others = median(run.others_share for row in rows for run in row.runs)
    yield Target("processor time of others, share of a core (above, the table is void)", OTHERS_SHARE, others)
    for figure, bound in BOUNDS.items():
        own = median(row.own_error(figure) for row in rows)
        yield Target(f"{figure}, median error", max(bound, OWN_FACTOR * own), median_error(rows, figure))
