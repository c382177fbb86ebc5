"""A burst beside a cloud: who leaves home, whose objectives hold, and how many hours of the cloud that takes.

    python -m bench.scale.burst [--seed N] [--quick] [--keep FILE]

Virtual time; the gateway's own pipeline, admission, router and supply controller, before simulated engines: two at home
and those of a cloud that the controller asks for. Half of the tenants may use home only. The load is what home carries,
then twice as much for half an hour, then as before. Compared with a cloud that is there for the burst alone, with the
fewest engines that keep as many requests' objectives. Exit status 1 where something falls short.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from bench.commit import measured_commit
from bench.target import Target
from gateway.config.pools import PoolEntry
from gateway.config.supply import SupplyConfig
from gateway.limits.accounts import make_quota_enforcer
from gateway.pipeline.record import Outcome
from gateway.scaling.controller import SupplyController
from gateway.scaling.demand import DemandMeter, MeteredAdmissionQueue
from routing.blocks import Prompt
from routing.decision.router import Router
from routing.pods import EngineShape, Pod, PodState
from routing.request import Api, Request
from simulator.clock import run_virtually
from simulator.profile import Profile
from simulator.replay import Setting
from simulator.replica import LONG_READY_S, MODEL, Replica
from simulator.sequence import Sequence as EngineSequence
from simulator.virtual_pod import VirtualPod
from supply.policy import ControlMode, GuardRails, SupplyPolicy
from tenancy.admission import Admission
from tenancy.objective import Tier
from tenancy.tenants import Caller, Tenant

HOME, CLOUD = "home", "cloud"
HOME_ENGINES, MAX_CLOUD_ENGINES = 2, 6
START_S = 60.0
LOOK_S = 15.0
"""Interval at which the cluster follows the controller's figure."""

GOLD = Tier("gold", 100, ttft_s=2.0, ttft_uncached_factor=1.0, tpot_s=0.1)
BRONZE = Tier("bronze", 10, ttft_s=10.0, ttft_uncached_factor=1.0, tpot_s=0.2)
TIERS = {tier.name: tier for tier in (GOLD, BRONZE)}
TENANTS = (
    Tenant("gold-anywhere", tier=GOLD),
    Tenant("gold-home", tier=GOLD, regions=frozenset({HOME})),
    Tenant("bronze-anywhere", tier=BRONZE),
    Tenant("bronze-home", tier=BRONZE, regions=frozenset({HOME})),
)
WEIGHTS = (2, 2, 3, 3)
PROMPT_TOKENS, ANSWER_TOKENS = (4_000, 12_000), (50, 250)
REQUESTS_PER_S = 1.2

WANTED_GOLD = 0.95
WANTED_HOURS = 1.2
EQUAL = 0.005
"""Shares of kept objectives that differ by less are equal."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds at the usual load, at twice of it, and at the usual load again."""

    before_s: float = 900.0
    burst_s: float = 1_800.0
    after_s: float = 600.0

    @property
    def end_s(self) -> float:
        """Return the length of all three."""
        return self.before_s + self.burst_s + self.after_s

    def name(self, at_s: float) -> str:
        """Return the phase at a time."""
        return "before" if at_s < self.before_s else "burst" if at_s < self.before_s + self.burst_s else "after"

    def rate(self, at_s: float) -> float:
        """Return requests per second at a time."""
        return REQUESTS_PER_S * (2 if self.name(at_s) == "burst" else 1)


@dataclass(slots=True)
class Played:
    """What became of the requests, by phase and tenant, and what the cloud was used for."""

    offered: Counter[tuple[str, str]] = field(default_factory=Counter)
    kept: Counter[tuple[str, str]] = field(default_factory=Counter)
    in_cloud: Counter[tuple[str, str]] = field(default_factory=Counter)
    cloud_s: float = 0.0
    """Engine-seconds, those of starts included."""
    peak: int = 0

    def share(self, phase: str, *names: str) -> float:
        """Return the share of requests that kept their objective."""
        keys = [(phase, name) for name in names]
        return sum(self.kept[key] for key in keys) / max(sum(self.offered[key] for key in keys), 1)

    @property
    def all_kept(self) -> float:
        """Return the share over all phases and tenants."""
        return self.kept.total() / max(self.offered.total(), 1)


class CloudReplica(Replica):
    """A gateway whose pods are put by the cluster."""

    def _put(self, place: int, url: str, profile: Profile) -> None:
        pass


class Cluster:
    """Pods of both pools, and the requests of one run. `fixed`: engines of the cloud during the burst; None: ours."""

    def __init__(self, phases: Phases, seed: int, fixed: int | None) -> None:
        self.played = Played()
        self._phases = phases
        self._fixed = fixed
        self._loop = asyncio.get_running_loop()
        self._pods: dict[str, VirtualPod] = {}
        self._callers = {tenant.name: Caller(tenant) for tenant in TENANTS}
        self._open: dict[str, tuple[str, str]] = {}
        self._since: dict[str, float] = {}
        self._draining: set[str] = set()
        self._number = 0
        setting = Setting("warm", 0, Profile(), seed)
        self.replica = CloudReplica(setting, 0, self._pods, self._note, _metered)
        room = self.replica.room
        assert isinstance(room, MeteredAdmissionQueue)
        assert room.admission is not None
        room.admission.tiers = TIERS
        self._meter = room.meter
        router, clock = self.replica.router, self._loop.time
        pools = {
            HOME: PoolEntry(HOME, 2.0, MODEL, region=HOME, start_s=START_S),
            CLOUD: PoolEntry(CLOUD, 5.0, MODEL, rank=1, region=CLOUD, start_s=START_S),
        }
        router.fleet.rank_pools({CLOUD: 1})
        self.controller = SupplyController(
            SupplyConfig(_policy()),
            router,
            room,
            make_quota_enforcer(router, {}, lambda: False, clock=clock, draw=Random(seed).random),
            pools=lambda: pools,
            tiers=lambda: TIERS,
            clock=clock,
            wall_clock=lambda: 1_800_000_000.0 + clock(),
            is_settled=lambda: True,
            log_event=lambda *_, **__: None,
        )
        for _ in range(HOME_ENGINES):
            self._start(HOME, PodState.READY)

    async def follow(self) -> None:
        """Start and end engines of the cloud, until cancelled."""
        while True:
            self._end_drained()
            wanted = self._wanted()
            there = [url for url in self._since if url not in self._draining]
            for _ in range(wanted - len(there)):
                url = self._start(CLOUD, PodState.STARTING)
                delay_s = START_S if self._fixed is None else 0.0
                self._loop.call_later(delay_s, self.replica.stand, url, PodState.READY)
            for url in there[wanted:]:
                self._draining.add(url)
                self.replica.stand(url, PodState.DRAINING)
            self.played.peak = max(self.played.peak, len(self._since))
            await asyncio.sleep(LOOK_S)

    def close(self) -> None:
        """Count what is still there."""
        for url in list(self._since):
            self.played.cloud_s += self._loop.time() - self._since.pop(url)

    def _wanted(self) -> int:
        if self._fixed is not None:
            return self._fixed if self._phases.name(self._loop.time()) == "burst" else 0
        return sum(each.engines for each in self.controller.decision.pools if each.pool == CLOUD)

    def _end_drained(self) -> None:
        for url in list(self._draining):
            if self._pods[url].statistics().running == 0:
                self._draining.discard(url)
                self.played.cloud_s += self._loop.time() - self._since.pop(url)
                self.replica.router.remove_pod(url)

    def _start(self, pool: str, state: PodState) -> str:
        self._number += 1
        url = f"{pool}-{self._number}"
        profile = Profile()
        self._pods[url] = VirtualPod(profile, self._loop)
        router = self.replica.router
        ready_s = LONG_READY_S if state is PodState.READY else self._loop.time()
        router.put_pod(Pod(url, state, frozenset({MODEL}), pool=pool, region=pool, ready_since_s=ready_s))
        router.reshape_pod(url, [EngineShape(kv_tokens=profile.kv_capacity_tokens, block_tokens=profile.block_size)])
        if pool == CLOUD:
            self._since[url] = self._loop.time()
        return url

    async def ask(self, number: int, tenant: Tenant, prompt_tokens: int, answer_tokens: int) -> None:
        """Send one request."""
        name = str(number)
        key = self._phases.name(self._loop.time()), tenant.name or ""
        self.played.offered[key] += 1
        self._open[name] = key
        prompt = Prompt((number,), (prompt_tokens // 16 * 16,), prompt_tokens)
        request = Request(name, Api.CHAT, MODEL, prompt, stream=True, regions=tenant.regions)
        sequence = EngineSequence(name, prompt_tokens, answer_tokens, prompt.blocks)
        await self.replica.run_request(request, sequence, self._callers[tenant.name])

    def _note(self, outcome: Outcome) -> None:
        self._meter.on_outcome(outcome)
        key = self._open.pop(outcome.id)
        self.played.kept[key] += bool(outcome.slo_met)
        if outcome.attempts and (outcome.attempts[-1].engine or "").startswith(CLOUD):
            self.played.in_cloud[key] += 1


def _metered(router: Router, clock: Callable[[], float], draw: Callable[[], float]) -> MeteredAdmissionQueue:
    room = MeteredAdmissionQueue(router, clock=clock, draw=draw, admission=Admission(router))
    room.meter = DemandMeter(router, clock=clock)
    return room


def _policy() -> SupplyPolicy:
    home = GuardRails(HOME_ENGINES, HOME_ENGINES, 10, 1_000.0)
    cloud = GuardRails(0, MAX_CLOUD_ENGINES, 10, 1_000.0)
    return SupplyPolicy(scaling=ControlMode.ACT, spill=ControlMode.ACT, pools={HOME: home, CLOUD: cloud})


def play(phases: Phases, seed: int, fixed: int | None = None) -> Played:
    """Play the three phases. `fixed`: engines of a cloud that is there for the burst alone; None: ours."""
    return run_virtually(_play(phases, seed, fixed))


async def _play(phases: Phases, seed: int, fixed: int | None) -> Played:
    cluster, random, loop = Cluster(phases, seed, fixed), Random(seed), asyncio.get_running_loop()
    loops = [loop.create_task(cluster.follow()), loop.create_task(cluster.controller.run())]
    number = 0
    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(random.expovariate(phases.rate(loop.time())))
            if loop.time() >= phases.end_s:
                break
            number += 1
            (tenant,) = random.choices(TENANTS, WEIGHTS)
            group.create_task(
                cluster.ask(number, tenant, random.randint(*PROMPT_TOKENS), random.randint(*ANSWER_TOKENS))
            )
    for each in loops:
        each.cancel()
    cluster.close()
    return cluster.played


def targets_of(ours: Played, minimal: Played) -> Iterator[Target]:
    """Return what is wanted: a cold cloud, gold's objectives, residency, and few hours of the cloud."""
    before = sum(count for (phase, _), count in ours.in_cloud.items() if phase == "before")
    offered = sum(count for (phase, _), count in ours.offered.items() if phase == "before")
    yield Target(f"requests in the cloud while home keeps its objectives, of {offered}", 0, before)
    gold = "gold-anywhere", "gold-home"
    yield Target("gold's objectives at twice the load", WANTED_GOLD, ours.share("burst", *gold), is_minimum=True)
    bound = sum(count for (_, name), count in ours.in_cloud.items() if name.endswith(HOME))
    yield Target("requests of tenants bound to home in the cloud", 0, bound)
    yield Target(
        "hours of the cloud by the least that would do", WANTED_HOURS, ours.cloud_s / max(minimal.cloud_s, 1.0)
    )


def min_cloud(phases: Phases, seed: int, ours: Played) -> tuple[int, Played]:
    """Return the fewest engines, there for the burst alone, with which as many requests keep their objectives."""
    for engines in range(MAX_CLOUD_ENGINES):
        played = play(phases, seed, engines)
        if played.all_kept >= ours.all_kept - EQUAL:
            return engines, played
    return MAX_CLOUD_ENGINES, play(phases, seed, MAX_CLOUD_ENGINES)


def table(rows: dict[str, Played]) -> str:
    """Return one line for each run: kept objectives by tenant in the burst, requests in the cloud, hours and peak."""
    names = [tenant.name or "" for tenant in TENANTS]
    lines = ["  ".join([f"{'way':>24}", *(f"{name:>15}" for name in names), "in cloud", "hours", "peak", " all"])]
    for name, row in rows.items():
        shares = [f"{row.share('burst', each):15.3f}" for each in names]
        figures = f"{row.in_cloud.total():8}  {row.cloud_s / 3_600:5.2f}  {row.peak:4}  {row.all_kept:.3f}"
        lines.append("  ".join([f"{name:>24}", *shares, figures]))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, print, and compare with what is wanted."""
    parser = argparse.ArgumentParser("bench.scale.burst", description="A burst beside a cloud, in virtual time.")
    parser.add_argument("--seed", type=int, default=41, help="seed of the arrivals (41)")
    parser.add_argument("--quick", action="store_true", help="short: shows that it runs, proves nothing")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write what is printed to this file too")
    options = parser.parse_args(arguments)
    phases = replace(Phases(), before_s=60.0, burst_s=120.0, after_s=30.0) if options.quick else Phases()
    ours = play(phases, options.seed)
    engines, minimal = min_cloud(phases, options.seed, ours)
    targets = [*targets_of(ours, minimal)]
    rows = {"ours": ours, f"{engines} for the burst alone": minimal}
    text = "\n\n".join([_head(options.seed), table(rows), "\n".join(map(str, targets))])
    sys.stdout.write(text + "\n")
    if options.keep:
        options.keep.write_text(text + "\n")
    return 0 if all(target.is_met for target in targets) else 1


def _head(seed: int) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    made = f"bench-scale, burst, {datetime.now(UTC):%Y-%m-%d}, commit {measured_commit()}"
    return f"{made}, {os.cpu_count()} shared cores, {python}, seed {seed}"


if __name__ == "__main__":
    sys.exit(main())
