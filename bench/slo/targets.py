"""The targets of admission control, one line each: wanted beside measured. A scenario's own are in its file."""

from __future__ import annotations

from collections.abc import Iterator

from bench.slo.figures import Figures
from bench.slo.gateways import LAYOUTS, ONE, Link
from bench.slo.reading import OF_BEST, REJECTED
from bench.slo.rows import Block
from bench.target import Target

OURS = "hearth"

REJECTION_S = 0.05
JAIN = 0.95

MANY_GOLD, MANY_SILVER, MANY_GOODPUT = 0.99, 0.03, 0.97
"""Of several gateways: gold attainment, how far silver may be below one gateway's, and their part of its goodput."""


def targets_of(block: Block) -> list[Target]:
    """All that is wanted of us in a scenario; nothing where we were not played or nothing is wanted."""
    ours = block.figures.get(OURS)
    return [] if ours is None else list(_targets(block, ours))


def gateway_targets(block: Block) -> Iterator[Target]:
    """What is wanted of several gateways that are linked: as good as one."""
    one, scenario = block.figures[ONE.name], block.scenario
    for layout in LAYOUTS:
        if layout.link is not Link.REDIS or layout.count == 1 or layout.name not in block.figures:
            continue
        many, here = block.figures[layout.name], f"{scenario.name}, {layout.name}"
        yield Target(f"{here}, gold attainment", MANY_GOLD, many.tiers["gold"].attainment, is_minimum=True)
        silver = one.tiers["silver"].attainment - MANY_SILVER
        yield Target(
            f"{here}, silver attainment (one - {MANY_SILVER})", silver, many.tiers["silver"].attainment, is_minimum=True
        )
        yield Target(
            f"{here}, met/s (one x {MANY_GOODPUT})", MANY_GOODPUT * one.met_per_s, many.met_per_s, is_minimum=True
        )


def _targets(block: Block, ours: Figures) -> Iterator[Target]:
    scenario = block.scenario
    for key, bound in scenario.wanted.items():
        if key == OF_BEST and block.best is None:
            continue
        if key == OF_BEST:
            yield Target(f"{scenario.name}, goodput by the best", bound, block.of_best(ours), is_minimum=True)
        elif key == REJECTED:
            yield Target(f"{scenario.name}, share refused, all tiers together", bound, ours.rejected)
        else:
            yield Target(f"{scenario.name}, {key} attainment", bound, ours.tiers[key].attainment, is_minimum=True)
    yield Target(f"{scenario.name}, median time to refusal, s", REJECTION_S, ours.rejection_p50_s)
    modest = sum(tier.modest_rejected for tier in ours.tiers.values())
    yield Target(f"{scenario.name}, refusals of tenants that ask for less than their part", 0, modest)
    worst = min(tier.jain for tier in ours.tiers.values())
    yield Target(f"{scenario.name}, Jain index inside each tier", JAIN, worst, is_minimum=True)
