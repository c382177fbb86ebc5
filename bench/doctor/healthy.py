"""Healthy hours with churn: restarts, short pauses, pods that leave and return, rollouts, tides and bursts; nothing may
be found.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from math import pi, sin
from random import Random

from bench.doctor.collector import Collector
from bench.doctor.fleet import Fleet
from bench.doctor.plans import healthy_plans
from bench.doctor.traffic import Load
from diagnosis.baseline import Baseline, learned
from diagnosis.diagnose import NO_STATE, diagnose
from simulator.clock import run_virtually

LOOK_S = 10.0
TIDE_S = 3_600.0
RESTART_EVERY_S = 600.0
PAUSE_EVERY_S, PAUSE_S = 300.0, (1.0, 8.0)
"""Mean time between pauses of whole processes, beyond 300 s after each, and how long they last, as in the soak."""
AWAY_EVERY_S, AWAY_S = 1_800.0, 180.0
ROLLOUT_EVERY_S, ROLLOUT_STEP_S = 1_500.0, 60.0
BURST_EVERY_S, BURST_S, BURST = 900.0, 120.0, 1.3


@dataclass(frozen=True, slots=True)
class HealthyHours:
    """What was found in hours in which nothing was wrong."""

    hours: float
    seed: int
    requests: int
    failed: int
    churned: int
    """Pods that were restarted, paused, taken away or rolled out."""
    found: tuple[str, ...]
    """Recipe, pool, pods and hour of each finding that was raised."""


def play_healthy(hours: float, seed: int, baseline: Baseline) -> HealthyHours:
    """Play so many virtual hours."""

    async def run() -> HealthyHours:
        loop = asyncio.get_running_loop()
        fleet = Fleet(healthy_plans(), seed, loop)
        collector, churn = Collector(fleet), Churn(fleet, Random(seed))
        fleet.start()
        churn.start()
        await asyncio.sleep(150.0)
        held, state, found, before = baseline, NO_STATE, list[str](), set[tuple[str, str]]()
        while loop.time() < hours * 3600:
            await asyncio.sleep(LOOK_S)
            collector.read()
            facts = collector.facts()
            diagnosis, state = diagnose(facts, held, state, facts.at_s)
            keys = {finding.key for finding in diagnosis.findings}
            found += [
                f"{loop.time() / 3600:.2f} h {finding.recipe} {finding.pool} {', '.join(finding.pods)}"
                for finding in diagnosis.findings
                if finding.key not in before
            ]
            before = keys
            if not keys:
                held = learned(held, facts)
        return HealthyHours(hours, seed, fleet.answered, fleet.failed, churn.count, tuple(found))

    return run_virtually(run())


class Churn:
    """What happens to a fleet without being wrong."""

    def __init__(self, fleet: Fleet, draws: Random) -> None:
        self._fleet = fleet
        self._draws = draws
        self._rates = dict(Load().rates)
        self._burst = 1.0
        self._rollout = 1
        self.count = 0

    def start(self) -> None:
        """Begin all of it."""
        self._tide()
        self._after(RESTART_EVERY_S, self._restart)
        self._after(AWAY_EVERY_S, self._leave)
        self._after(PAUSE_EVERY_S, self._pause)
        self._after(BURST_EVERY_S, self._surge)
        self._fleet.loop.call_later(ROLLOUT_EVERY_S, self._roll_out)

    def _after(self, mean_s: float, then: object) -> None:
        self._fleet.loop.call_later(300.0 + self._draws.expovariate(1 / mean_s), then)  # type: ignore[arg-type]

    def _tide(self) -> None:
        now = self._fleet.loop.time()
        level = (0.8 + 0.2 * sin(2 * pi * now / TIDE_S)) * self._burst
        self._fleet.traffic.load.rates = {pool: level * rate for pool, rate in self._rates.items()}
        self._fleet.loop.call_later(30.0, self._tide)

    def _surge(self) -> None:
        self._burst = BURST
        self._fleet.loop.call_later(BURST_S, self._ebb)
        self._after(BURST_EVERY_S, self._surge)

    def _ebb(self) -> None:
        self._burst = 1.0

    def _restart(self) -> None:
        self.count += 1
        address = self._draws.choice(sorted(self._fleet.pods))
        self._fleet.restart(self._fleet.pods[address].plan)
        self._after(RESTART_EVERY_S, self._restart)

    def _pause(self) -> None:
        self.count += 1
        pod = self._fleet.pods[self._draws.choice(sorted(self._fleet.pods))]
        if pod.waiting is None:
            pod.pause()
            self._fleet.loop.call_later(self._draws.uniform(*PAUSE_S), pod.unpause)
        self._after(PAUSE_EVERY_S, self._pause)

    def _leave(self) -> None:
        self.count += 1
        plan = self._fleet.remove(self._draws.choice(sorted(self._fleet.pods)))
        self._fleet.loop.call_later(AWAY_S, self._fleet.restart, plan)
        self._after(AWAY_EVERY_S, self._leave)

    def _roll_out(self) -> None:
        """Give every pod another image, one after the other."""
        self._rollout += 1
        build = {"image_digest": f"sha256:{self._rollout:04x}", "rollout": f"r{self._rollout}"}
        for number, address in enumerate(sorted(self._fleet.pods)):
            self._fleet.loop.call_later(number * ROLLOUT_STEP_S, self._roll, address, build)
        self._fleet.loop.call_later(ROLLOUT_EVERY_S, self._roll_out)

    def _roll(self, address: str, build: dict[str, str]) -> None:
        if address in self._fleet.pods:
            self.count += 1
            self._fleet.restart(replace(self._fleet.pods[address].plan, build=build))
