"""Plays many jobs on several cores, and gathers medians of seeds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from statistics import fmean

from bench.slo.best import Best, find_best
from bench.slo.figures import Figures, middle_figures
from bench.slo.gateways import SCENARIOS, Gateways
from bench.slo.policies import FCFS, HEARTH, Policy
from bench.slo.reading import load_scenario
from bench.slo.rows import Block
from bench.slo.scenario import Scenario
from bench.slo.traffic import draw_traffic
from bench.slo.virtual import Job, play
from simulator.trace_formats import TraceFault

FIRST_GUESS = 0.25
"""Of what the fleet could prefill if it did nothing else."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Every figure is the median over `seeds`."""

    pool: Executor
    seeds: Sequence[int]

    def measure(self, scenario: Scenario, policies: Sequence[Policy], load: float) -> dict[str, Figures]:
        """Each policy's figures at a load."""
        jobs = [Job(scenario, policy, load, seed) for policy in policies for seed in self.seeds]
        played, each = list(self.pool.map(play, jobs)), len(self.seeds)
        return {policy.name: middle_figures(played[at * each : (at + 1) * each]) for at, policy in enumerate(policies)}

    def measure_gateways(self, scenario: Scenario, layouts: Sequence[Gateways], load: float) -> dict[str, Figures]:
        """Figures of the same gateway, alone and as several, at a load."""
        jobs = [Job(scenario, HEARTH, load, seed, gateways=layout) for layout in layouts for seed in self.seeds]
        played, each = list(self.pool.map(play, jobs)), len(self.seeds)
        return {layout.name: middle_figures(played[at * each : (at + 1) * each]) for at, layout in enumerate(layouts)}

    def find_best(self, scenario: Scenario) -> Best:
        """The best load of a scenario on its own fleet: where it is by the first seed, what it brings by all."""

        def measure(load: float, seeds: Sequence[int]) -> Best:
            one = replace(self, seeds=seeds).measure(scenario, [FCFS], load)[FCFS.name]
            return Best(load, one.met_per_s, one.met_tokens_per_s)

        drawn = draw_traffic(scenario, 1.0, self.seeds[0])
        prefill_s = fmean(scenario.profile.prefill_s(0, one.prompt_tokens) for one in drawn)
        found = find_best(lambda load: measure(load, self.seeds[:1]), FIRST_GUESS * scenario.engines / prefill_s)
        return measure(found.load, self.seeds)


def play_virtual(
    runs: Runs, scenarios: Sequence[Scenario], policies: Sequence[Policy], load: float | None
) -> list[Block]:
    """Every scenario at its own times the best load of the scenario it is like, or all at one load."""
    bests: dict[str, Best] = {}
    blocks = []
    for scenario in scenarios:
        try:
            best = None if load else _best(runs, scenario, bests)
            at = best.load * scenario.load if best else load or 0.0
            block = Block(scenario, at, best, runs.measure(scenario, policies, at))
        except TraceFault as fault:
            print(f"{scenario.name} is left out: {fault}", file=sys.stderr)
            continue
        print(f"{block}\n", file=sys.stderr, flush=True)
        blocks.append(block)
    return blocks


def play_gateways(
    runs: Runs, scenarios: Sequence[Scenario], layouts: Sequence[Gateways], load: float | None
) -> list[Block]:
    """Several gateways beside one, in those of the scenarios that `bench.slo.gateways` names."""
    bests: dict[str, Best] = {}
    blocks = []
    for scenario in [each for each in scenarios if each.name in SCENARIOS]:
        best = None if load else _best(runs, scenario, bests)
        at = best.load * scenario.load if best else load or 0.0
        named = replace(scenario, name=f"{scenario.name}, several gateways")
        blocks.append(Block(named, at, best, runs.measure_gateways(scenario, layouts, at)))
        print(f"{blocks[-1]}\n", file=sys.stderr, flush=True)
    return blocks


def _best(runs: Runs, scenario: Scenario, bests: dict[str, Best]) -> Best:
    """Of the scenario that it is like: additions to it do not lower the target."""
    if scenario.base not in bests:
        bests[scenario.base] = found = runs.find_best(load_scenario(scenario.base))
        print(f"{scenario.base}: best load {found.load:.2f}/s, met {found.met_per_s:.2f}/s\n", file=sys.stderr)
    return bests[scenario.base]
