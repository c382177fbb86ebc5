"""The table: one block a scenario, one line a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.slo.best import Best
from bench.slo.figures import Figures, TierFigures
from bench.slo.scenario import Scenario

TierCell = Callable[[TierFigures], str]

SHOWN = 0.005
"""Reasons of fewer attempts by the offered requests are left out."""


@dataclass(frozen=True, slots=True)
class Block:
    """A scenario and the results of each policy in it."""

    scenario: Scenario
    load: float
    best: Best | None
    figures: Mapping[str, Figures]

    def of_best(self, figures: Figures) -> float:
        """Goodput by the best there is."""
        return figures.met_per_s / self.best.met_per_s if self.best else 0.0

    def __str__(self) -> str:
        scenario = self.scenario
        times = f" = {self.load / self.best.load:g} x the best load of {scenario.base}" if self.best else ""
        head = f"{scenario.name}: {scenario.about} ({self.load:.1f} requests/s{times})"
        lines = tabulate([self._heads(), *(self._cells(name, one) for name, one in self.figures.items())])
        reason_lines = [f"  {name}: {_reasons(one)}" for name, one in self.figures.items() if one.reasons]
        return "\n".join(
            [head, lines, *(["attempts without an answer, by offered requests", *reason_lines] if reason_lines else [])]
        )

    def _heads(self) -> list[str]:
        tiers = "/".join(self.scenario.tiers)
        heads = ["", f"attainment {tiers}", "in tokens", "refused", "met/s", "of best", "tokens/s", "of best"]
        return [*heads, "time to refusal p50/p99 ms", "Jain", "dry s", "wasted"]

    def _cells(self, name: str, one: Figures) -> list[str]:
        best = self.best
        of_best = f"{self.of_best(one):.3f}" if best else "-"
        of_best_tokens = f"{one.met_tokens_per_s / best.met_tokens_per_s:.3f}" if best else "-"

        def each(cell: TierCell) -> str:
            return " ".join(map(cell, one.tiers.values()))

        return [
            name,
            each(lambda tier: f"{tier.attainment:.3f}"),
            each(lambda tier: f"{tier.attainment_tokens:.3f}"),
            each(lambda tier: f"{tier.rejected:.3f}"),
            f"{one.met_per_s:.2f}",
            of_best,
            f"{one.met_tokens_per_s:,.0f}",
            of_best_tokens,
            f"{one.rejection_p50_s * 1000:.0f}/{one.rejection_p99_s * 1000:.0f}" if one.reasons else "-",
            each(lambda tier: f"{tier.jain:.2f}"),
            each(lambda tier: f"{tier.dry_s:.0f}"),
            f"{one.wasted:.1%}",
        ]


def _reasons(one: Figures) -> str:
    return ", ".join(f"{reason} {share:.2f}" for reason, share in one.reasons.items() if share >= SHOWN) or "few"


def tabulate(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned, the first to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    )
