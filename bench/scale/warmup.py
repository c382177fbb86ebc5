"""New pods with and without warm-up, in virtual time: the production pipeline, router, admission and warm-up decisions.

    python -m bench.scale.warmup [--seed N ...] [--case NAME ...] [--keep FILE]

Exit status 1 where a target is missed. Simulated are engines, the updates between gateways, and the watcher, which
notices a new pod at each gateway at a time of its own. Prompts have no text here: what is kept is their blocks.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from pathlib import Path
from random import Random

from bench.slo.policies import HEARTH
from bench.target import Target
from gateway.pipeline.record import Outcome
from gateway.warmup.controller import WarmupController
from gateway.warmup.prompt_store import KeptPrompt, PromptStore
from gateway.warmup.replay import ReplayEnd, ReplayReport
from routing.blocks import Prompt
from routing.pods import Engine, PodState
from routing.replica_state import SupplyUpdate
from routing.request import Api, Request, Usage
from simulator.clock import run_virtually
from simulator.exchange import Exchange
from simulator.profile import Profile
from simulator.replica import MODEL, Replica
from simulator.sequence import Milestone, MilestoneKind
from simulator.sequence import Sequence as EngineSequence
from simulator.split import Split
from simulator.virtual_pod import VirtualPod
from supply.policy import ControlMode, SupplyPolicy
from tenancy.objective import Tier
from tenancy.tenants import Caller, Tenant

BLOCK = 128
PROFILE = Profile(block_size=BLOCK, by_priority=True, prefill_tokens_per_s=12_000.0)
PREFIX_TOKENS = 8_192
OWN_TOKENS = 1_024
ANSWER_TOKENS = 120
PREFIXES = 16
PREFIX_STEP = 1_000_000
LOWEST_PRIORITY = 1_000_000
FIRST_MINUTE_S = 60.0
PROBE_S = 2.0
"""Between two probes of a pod: each gateway notices it within that time."""

TIERS = {
    "gold": Tier("gold", priority=10, ttft_s=0.5, ttft_uncached_factor=1.0, tpot_s=0.05, guaranteed_share=0.5),
    "silver": Tier("silver", priority=0, ttft_s=2.0, ttft_uncached_factor=1.0, tpot_s=0.1),
}
GOLD_SHARE = 0.4

TTFT_BOUND = 1.3
ATTAINMENT_BOUND = 0.005
COVERED = 0.95

METHOD = f"""\
Virtual time; production pipeline, router, admission and warm-up, simulated engines (12,000 prompt tokens/s). {PREFIXES}
system prompts of {PREFIX_TOKENS:,} tokens, popular as 1/rank, with {OWN_TOKENS} tokens of each request's own and
{ANSWER_TOKENS} of answer; gold ({GOLD_SHARE:.0%}) has 0.5 s to its first token plus its own prefill, silver 2 s.
TTFT: of requests to a pod within {FIRST_MINUTE_S:g} s of its first load, beside those to the standing pods meanwhile.\
"""


@dataclass(frozen=True, slots=True)
class Case:
    """Pods that join a fleet."""

    name: str
    gateways: int
    standing: int
    joining: int
    join_s: float
    spread_s: float
    """Within which the new pods become ready."""
    end_s: float
    rate: float
    """Requests per second, until the load rises."""
    rise_s: float
    rate_after: float
    max_pods: int = 16
    is_ahead: bool = True
    """Whether standing pods keep their objectives while the new ones are held: these are then given all prefixes."""


CASES = (
    Case("4 pods join 6 ahead of a rise", 1, 6, 4, 60.0, 1.0, 150.0, 25.0, 80.0, 42.0),
    Case("4 pods join 6 as the load jumps", 1, 6, 4, 60.0, 1.0, 150.0, 25.0, 60.0, 42.0, is_ahead=False),
    Case("40 pods and 8 gateways start together", 8, 8, 40, 60.0, 1.0, 125.0, 28.0, 60.0, 28.0, max_pods=40),
)


@dataclass(frozen=True, slots=True)
class Made:
    """Of what a replica is made."""

    routing: str
    profile: Profile
    seed: int
    deadline_s: float = 600.0
    split: Split | None = None
    knows_caches: bool = False


@dataclass(slots=True)
class Played:
    """What came of one run."""

    outcomes: list[tuple[float, Outcome]] = field(default_factory=list)
    """With their arrival."""
    first_load_s: dict[str, float] = field(default_factory=dict)
    """When each new pod began to take load, at the first gateway that gave it any."""
    replays: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By pod and last block of the prefix."""
    replayed_tokens: int = 0
    requests_before_replays: int = 0
    """Client requests that a new pod received before its first replay, where it received any."""
    held_s: float = 0.0
    """Mean time from ready to load."""
    ends: Counter[str] = field(default_factory=Counter)

    def attainment(self, tier: str) -> float:
        """Share of a tier's requests that kept their objective."""
        met = [outcome.slo_met for _, outcome in self.outcomes if outcome.tier == tier and outcome.slo_met is not None]
        return sum(met) / len(met) if met else 1.0

    def ttfts(self, *, is_new: bool) -> list[float]:
        """TTFT of requests in the first minute of new pods: on these, or on the standing ones meanwhile."""
        if not self.first_load_s:
            return []
        begin_s = min(self.first_load_s.values())
        found = []
        for at_s, outcome in self.outcomes:
            if outcome.ttft_s is None or not outcome.attempts:
                continue
            since_s = self.first_load_s.get(outcome.attempts[-1].engine)
            start_s = begin_s if since_s is None else since_s
            if (since_s is not None) is is_new and start_s <= at_s < start_s + FIRST_MINUTE_S:
                found.append(outcome.ttft_s)
        return sorted(found)


class Scene:
    """Gateways, engines, and the pods that join."""

    def __init__(self, case: Case, seed: int, mode: ControlMode) -> None:
        loop = asyncio.get_running_loop()
        self.case, self.played = case, Played()
        self._loop, self._random = loop, Random(f"{case.name} {seed}")
        self.pods = {f"old-{number}": VirtualPod(PROFILE, loop) for number in range(case.standing)}
        self._replicas = [
            Replica(Made("warm", PROFILE, seed), number, self.pods, self._note, HEARTH.make_room)
            for number in range(case.gateways)
        ]
        self._arrived_s: dict[str, float] = {}
        self._exchange = Exchange(delay_s=0.005) if case.gateways > 1 else None
        self._stores: list[PromptStore] = []
        self._controllers: list[WarmupController] = []
        policy = SupplyPolicy(prewarm=mode, prewarm_max_pods=case.max_pods)
        for number, replica in enumerate(self._replicas):
            if replica.room.admission is not None:
                replica.room.admission.tiers = TIERS
            self._join(number, replica, policy)
        self._callers = {name: Caller(Tenant(name, tier=tier)) for name, tier in TIERS.items()}
        self._weights = [1 / (rank + 1) for rank in range(PREFIXES)]
        self._ready_s: dict[str, float] = {}
        self._running = [loop.create_task(each.run()) for each in self._controllers]
        self._running += [loop.create_task(each.look()) for each in self._replicas] if case.gateways > 1 else []

    def _join(self, number: int, replica: Replica, policy: SupplyPolicy) -> None:
        """Connect a gateway to the others, and its warm-ups to it."""
        applier = None if self._exchange is None else self._exchange.join(replica.router, replica.room.admission)
        if policy.prewarm is ControlMode.OFF:
            return
        store = PromptStore(
            max_bytes=policy.prewarm_keep_bytes,
            max_age_s=policy.prewarm_keep_s,
            keeps_text=True,
            clock=self._loop.time,
            shorten=lambda _api, _body, size: (b"", size),
        )
        controller = WarmupController(
            policy,
            replica.router,
            store,
            self._send,
            end_warmup=partial(self._let_go, replica),
            pools=dict,
            wait_share=replica.room.max_wait_share,
            clock=self._loop.time,
            log_event=self._log,
        )
        if self._exchange is not None and applier is not None:
            exchange = self._exchange
            controller.share(lambda payload: exchange.publish(number, SupplyUpdate(payload)), lambda: number)
            applier.supply_listeners += (controller.take,)
        self._stores.append(store)
        self._controllers.append(controller)

    # -- pods ----------------------------------------------------------------------------------------------------------

    def add_pod(self, url: str) -> None:
        """A pod has become ready: each gateway notices with its next probe."""
        self.pods[url] = VirtualPod(PROFILE, self._loop)
        self._ready_s[url] = self._loop.time()
        for number, replica in enumerate(self._replicas):
            self._loop.call_later(self._random.uniform(0, PROBE_S), self._notice, number, replica, url)

    def _notice(self, number: int, replica: Replica, url: str) -> None:
        replica.put(len(self.pods), url, PROFILE, PodState.STARTING)
        known = replica.router.fleet.pod(url)
        if known is None:
            return
        if self._controllers and self._controllers[number].should_warm(replace(known, state=PodState.READY)):
            replica.stand(url, PodState.WARMING)
        else:
            replica.stand(url, PodState.READY)

    @staticmethod
    def _let_go(replica: Replica, url: str) -> None:
        replica.stand(url, PodState.READY)

    async def _send(self, engine: Engine, prompt: KeptPrompt, request_id: str, timeout_s: float) -> ReplayReport:
        """Have a simulated engine compute a prompt."""
        pod, ended = self.pods[engine.pod], self._loop.create_future()
        self.played.replays[engine.pod, prompt.prompt.blocks[-1]] += 1
        if engine.pod in self.played.first_load_s:
            self.played.requests_before_replays += 1
        cached = pod.held_blocks(prompt.prompt.blocks) * BLOCK

        def listen(milestone: Milestone) -> None:
            if milestone.kind is MilestoneKind.FINISHED and not ended.done():
                ended.set_result(None)

        size = prompt.prompt.size
        pod.submit(EngineSequence(request_id, size, 1, prompt.prompt.blocks, priority=LOWEST_PRIORITY), listen)
        try:
            async with asyncio.timeout(timeout_s):
                await ended
        except TimeoutError:
            return ReplayReport(ReplayEnd.FAILED)
        finally:
            pod.abort(request_id)
        self.played.replayed_tokens += size - cached
        return ReplayReport(ReplayEnd.COMPUTED, Usage(size, 1, cached))

    def _log(self, _level: str, event: str, **fields: object) -> None:
        if event == "pod_warmed":
            self.played.ends[str(fields["reason"])] += 1

    # -- requests ------------------------------------------------------------------------------------------------------

    async def ask(self, number: int) -> None:
        """One request, at one of the gateways."""
        random = self._random
        prefix = random.choices(range(PREFIXES), self._weights)[0]
        tier = "gold" if random.random() < GOLD_SHARE else "silver"
        shared = tuple((prefix + 1) * PREFIX_STEP + at for at in range(PREFIX_TOKENS // BLOCK))
        own = tuple((number + 1) * 1_000_000_000 + at for at in range(OWN_TOKENS // BLOCK))
        blocks, size = shared + own, PREFIX_TOKENS + OWN_TOKENS
        request = Request(
            str(number), Api.CHAT, MODEL, Prompt(blocks, range(BLOCK, size + 1, BLOCK), size), stream=True
        )
        gateway, caller = random.randrange(len(self._replicas)), self._callers[tier]
        if self._stores:
            self._stores[gateway].observe(request, b"", "/v1/chat/completions", caller)
        self._arrived_s[request.id] = self._loop.time()
        sequence = EngineSequence(request.id, size, ANSWER_TOKENS, blocks, priority=-TIERS[tier].priority)
        await self._replicas[gateway].run_request(request, sequence, caller)

    def _note(self, outcome: Outcome) -> None:
        at_s = self._arrived_s.pop(outcome.id)
        self.played.outcomes.append((at_s, outcome))
        for attempt in outcome.attempts:
            if attempt.engine in self._ready_s:
                known = self.played.first_load_s.get(attempt.engine, at_s)
                self.played.first_load_s[attempt.engine] = min(known, at_s)

    def close(self) -> None:
        """End what runs beside the requests, and sum up."""
        for task in self._running:
            task.cancel()
        waits = [at_s - self._ready_s[url] for url, at_s in self.played.first_load_s.items()]
        self.played.held_s = sum(waits) / len(waits) if waits else 0.0


async def _play(case: Case, seed: int, mode: ControlMode) -> Played:
    scene, random, loop = Scene(case, seed, mode), Random(f"arrivals {case.name} {seed}"), asyncio.get_running_loop()
    for number in range(case.joining):
        loop.call_at(case.join_s + random.uniform(0, case.spread_s), scene.add_pod, f"new-{number}")
    at_s, number = 0.0, 0
    async with asyncio.TaskGroup() as group:
        while at_s < case.end_s:
            at_s += random.expovariate(case.rate if at_s < case.rise_s else case.rate_after)
            await asyncio.sleep(max(0.0, at_s - loop.time()))
            group.create_task(scene.ask(number))
            number += 1
    scene.close()
    return scene.played


def play(case: Case, seed: int, mode: ControlMode) -> Played:
    """Play a case. The same arguments give the same figures."""
    return run_virtually(_play(case, seed, mode))


def prefix_of(block: int) -> int:
    """Return the rank of the system prompt that a block belongs to."""
    return block // PREFIX_STEP - 1


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile of sorted values; 0 of none."""
    return values[min(len(values), max(1, ceil(share * len(values)))) - 1] if values else 0.0


HEAD = (
    f"  {'prewarm':8}{'gold':>8}{'silver':>8}{'new pods p50':>14}{'p99':>8}{'standing p50':>14}{'p99':>8}"
    f"{'ratio':>8}{'held s':>8}{'replays':>9}{'tokens':>12}  ended by"
)

MODES = {ControlMode.OFF: "off", ControlMode.ACT: "act"}


def block(case: Case, runs: dict[ControlMode, Played]) -> str:
    """Return the table of a case."""
    lines = [
        f"{case.name} ({case.gateways} gateways, {case.rate:g} and {case.rate_after:g} requests/s)",
        HEAD,
    ]
    for mode, played in runs.items():
        new, standing = played.ttfts(is_new=True), played.ttfts(is_new=False)
        lines.append(
            f"  {MODES[mode]:8}{played.attainment('gold'):8.4f}{played.attainment('silver'):8.4f}"
            f"{percentile(new, 0.5):14.3f}{percentile(new, 0.99):8.3f}{percentile(standing, 0.5):14.3f}"
            f"{percentile(standing, 0.99):8.3f}{_ratio(played):8.2f}{played.held_s:8.1f}"
            f"{sum(played.replays.values()):9}{played.replayed_tokens:12,}  "
            + (", ".join(f"{reason} {count}" for reason, count in sorted(played.ends.items())) or "-")
        )
    return "\n".join(lines)


def _ratio(played: Played) -> float:
    fleet = percentile(played.ttfts(is_new=False), 0.99)
    return percentile(played.ttfts(is_new=True), 0.99) / fleet if fleet else 0.0


def targets_of(case: Case, runs: dict[ControlMode, Played]) -> Iterator[Target]:
    """Return what issue 25 asks of warm-ups."""
    off, act = runs[ControlMode.OFF], runs[ControlMode.ACT]
    lost = off.attainment("gold") - act.attainment("gold")
    yield Target(f"{case.name}: gold's attainment lost by holding pods", ATTAINMENT_BOUND, lost)
    yield Target(f"{case.name}: replays of one prefix to one pod", 1, max(act.replays.values(), default=0))
    yield Target(f"{case.name}: replays behind a client's request", 0, act.requests_before_replays)
    if case.is_ahead:
        yield Target(f"{case.name}: p99 TTFT of new pods by the standing ones'", TTFT_BOUND, _ratio(act))
        weights = [1 / (rank + 1) for rank in range(PREFIXES)]
        share = sum(weights[prefix_of(block)] for _, block in act.replays) / sum(weights) / case.joining
        yield Target(f"{case.name}: traffic whose prefix a new pod was given", COVERED, share, is_minimum=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale.warmup")
    parser.add_argument("--seed", type=int, action="append", help="seed (default 101)")
    parser.add_argument("--case", action="append", default=[], help="part of a case's name")
    parser.add_argument("--keep", type=Path, help="file for the table")
    options = parser.parse_args(arguments)
    blocks, targets = [METHOD], list[Target]()
    for case in CASES:
        if options.case and not any(part in case.name for part in options.case):
            continue
        for seed in options.seed or [101]:
            runs = {mode: play(case, seed, mode) for mode in MODES}
            blocks.append(f"seed {seed}: {block(case, runs)}")
            targets += targets_of(case, runs)
    page = "\n\n".join([*blocks, "\n".join(map(str, targets))])
    print(page)
    if options.keep:
        options.keep.write_text(page + "\n")
    return 0 if targets and all(target.is_met for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
