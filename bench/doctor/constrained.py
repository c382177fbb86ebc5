"""Time per token of constrained requests on a fleet of speculating and plain pods, with and without their price.

The production router chooses with its `warm` scorers; diagnosis prices speculating pods as the gateway does. Half of
the requests bring a schema, whose grammar rejects most drafted tokens. Engines are simulated with one acceptance for
all sequences: a constrained one is made as much longer as it takes more steps, and is counted without what was added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from bench.doctor.collector import Collector
from bench.doctor.fleet import CONSTRAINED_ACCEPTANCE, Ended, Fleet, Running
from bench.doctor.plans import BLOCK, CHAT, PodPlan
from bench.doctor.pods import SimulatedRank
from diagnosis.baseline import Baseline, learned
from diagnosis.diagnose import NO_STATE, diagnose
from gateway.diagnosis.effects import EffectsPublisher
from routing.blocks import Prompt
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.pods import EngineShape, Pod, PodState
from routing.request import Api, Request, Usage
from scorers.constrained_decoding import ConstrainedDecoding
from scorers.registry import routings
from simulator.clock import run_virtually
from simulator.profile import Profile
from simulator.sequence import Milestone, Sequence

SPECULATING = replace(CHAT, speculative_tokens=5, acceptance_rate=0.7, draft_s=0.015)
"""A draft model that takes 3 ms a token, beside a target that takes 20."""

PLAIN = replace(CHAT, speculative_tokens=0, acceptance_rate=0.0)

CONSTRAINED = replace(SPECULATING, acceptance_rate=CONSTRAINED_ACCEPTANCE)

STRETCH = SPECULATING.tokens_per_step / CONSTRAINED.tokens_per_step
"""Steps of a constrained sequence by those of a plain one with as many tokens, on a speculating engine."""

RATE = 5.0
FEW, MANY = 0.05, 0.35
"""Share of constrained requests: while the baseline is learned, and afterwards."""

WARM_S, LEARN_S, CHANGE_S, MEASURED_S = 150.0, 300.0, 120.0, 600.0
"""Before the first look, looks at few constrained requests, time for a finding and its price, and what is measured."""

LOOK_S = 5.0

UNSPECULATED, UNPRICED, PRICED = "no pod speculates", "not priced", "priced"


@dataclass(frozen=True, slots=True)
class Setup:
    """What is compared. `weight` is that of the scorer `constrained_decoding`."""

    speculates: bool
    weight: float


SETUPS = {UNSPECULATED: Setup(False, 0.0), UNPRICED: Setup(True, 0.0), PRICED: Setup(True, 1.0)}


@dataclass(frozen=True, slots=True)
class ConstrainedRun:
    """Means of one run, milliseconds a token."""

    seed: int
    setup: str
    """One of `SETUPS`."""
    constrained_ms: float
    plain_ms: float
    """Of requests without a schema."""
    on_plain_pods: float
    """Share of constrained requests that were sent to plain pods."""
    is_found: bool
    """Whether the finding was raised at any look."""


def mixed_plans(*, speculates: bool) -> dict[str, PodPlan]:
    """Return four pods of one pool, of which the first two may speculate."""
    first = SPECULATING if speculates else PLAIN
    profiles: Mapping[str, Profile] = {"s0": first, "s1": first, "p0": PLAIN, "p1": PLAIN}
    plans = [PodPlan(f"http://{name}:8000", "chat", profile) for name, profile in profiles.items()]
    return {plan.address: plan for plan in plans}


class RoutedFleet(Fleet):
    """A fleet whose requests the production router places."""

    def __init__(self, seed: int, loop: asyncio.AbstractEventLoop, setup: Setup) -> None:
        plans = mixed_plans(speculates=setup.speculates)
        super().__init__(plans, seed, loop)
        self.traffic.load.rates = {"chat": RATE}
        self.traffic.load.constrained = FEW
        self.ended: list[Ended] = []
        self.sent_plain = self.sent_constrained = 0
        scorers = [
            ConstrainedDecoding(setup.weight) if isinstance(scorer, ConstrainedDecoding) else scorer
            for scorer in routings()["warm"]
        ]
        self.router = Router(scorers, exact_sizes=True)
        self._placements: dict[int, Placement] = {}
        for address, plan in plans.items():
            self.router.put_pod(Pod(address, PodState.READY, models=frozenset({"chat"}), ready_since_s=-10_000.0))
            shape = EngineShape(kv_tokens=plan.profile.kv_capacity_tokens, block_tokens=BLOCK)
            self.router.reshape_pod(address, [shape])

    def _place(self, request: Running) -> None:
        request.attempts += 1
        drawn = request.drawn
        blocks = drawn.blocks[: drawn.prompt_tokens // BLOCK]
        placement = self.router.place(
            Request(
                f"{request.number}.{request.attempts}",
                Api.CHAT,
                "chat",
                Prompt(blocks, range(BLOCK, BLOCK * len(blocks) + 1, BLOCK), drawn.prompt_tokens),
                stream=True,
                is_constrained=drawn.is_constrained,
            ),
            avoid=frozenset(),
            now_s=self.loop.time(),
            draw=self.draws.random(),
        )
        self._placements[request.number] = placement
        address = placement.engine.name
        if drawn.is_constrained:
            self.sent_constrained += 1
            self.sent_plain += not self.pods[address].plan.profile.speculative_tokens
        self._send(request, address, self.pods[address].ranks[0], None)

    def _speculates(self, request: Running) -> bool:
        return bool(self.pods[request.pod].plan.profile.speculative_tokens)

    def _sequence(self, request: Running) -> Sequence:
        held = super()._sequence(request)
        if not (request.drawn.is_constrained and self._speculates(request)):
            return held
        return replace(held, output_tokens=round(held.output_tokens * STRETCH))

    def _set_pace(self, rank: SimulatedRank) -> None:
        """Leave the engine's acceptance as it is: constrained sequences are longer instead."""

    def _finish(self, request: Running, end: Milestone, sent_s: float) -> None:
        added = end.output_tokens - request.drawn.output_tokens
        if added > 0:
            self.pods[request.pod].ranks[0].books.steps.accepted_tokens -= added
            end = replace(end, output_tokens=request.drawn.output_tokens)
        super()._finish(request, end, sent_s)

    def _note_first_token(self, request: Running) -> None:
        super()._note_first_token(request)
        self._placements[request.number].first_token(self.loop.time())

    def _note_end(self, request: Running, ended: Ended) -> None:
        super()._note_end(request, ended)
        self.ended.append(ended)
        placement, now_s = self._placements.pop(request.number), self.loop.time()
        placement.settle(Usage(ended.drawn.prompt_tokens, ended.drawn.output_tokens, ended.cached_tokens), now_s)
        placement.release(now_s)


def play_constrained(setup: str, seed: int) -> ConstrainedRun:
    """Play one run of `SETUPS`."""

    async def run() -> ConstrainedRun:
        loop = asyncio.get_running_loop()
        fleet = RoutedFleet(seed, loop, SETUPS[setup])
        collector = Collector(fleet)
        effects = EffectsPublisher(
            None,
            lambda found: fleet.router.set_token_excess(found.constrained_excess_s, found.plain_excess_s),
            loop.time,
        )
        fleet.start()
        await asyncio.sleep(WARM_S)
        baseline, state, is_found = Baseline(), NO_STATE, False
        many_s = loop.time() + LEARN_S
        measured_s = many_s + CHANGE_S
        while loop.time() < measured_s + MEASURED_S:
            await asyncio.sleep(LOOK_S)
            collector.read()
            facts = collector.facts()
            diagnosis, state = diagnose(facts, baseline, state, facts.at_s)
            effects.apply(facts, diagnosis)
            is_found |= any(finding.recipe == "constrained_on_speculating" for finding in diagnosis.findings)
            if loop.time() < many_s:
                baseline = learned(baseline, facts)
            else:
                fleet.traffic.load.constrained = MANY
            if loop.time() < measured_s:
                fleet.ended.clear()
                fleet.sent_plain = fleet.sent_constrained = 0
        return _run_of(fleet, setup, seed, is_found=is_found)

    return run_virtually(run())


def _run_of(fleet: RoutedFleet, setup: str, seed: int, *, is_found: bool) -> ConstrainedRun:
    gaps = [(each.drawn.is_constrained, 1_000 * each.gap_s) for each in fleet.ended if each.gap_s is not None]
    return ConstrainedRun(
        seed=seed,
        setup=setup,
        constrained_ms=fmean(gap for is_constrained, gap in gaps if is_constrained),
        plain_ms=fmean(gap for is_constrained, gap in gaps if not is_constrained),
        on_plain_pods=fleet.sent_plain / max(fleet.sent_constrained, 1),
        is_found=is_found,
    )


def constrained_rows(runs: list[ConstrainedRun]) -> list[str]:
    """Return the rows of the report: without speculation, with it on half of the pods, and priced there."""
    lines = [f"constrained requests, {MANY:.0%} of all, on 2 speculating and 2 plain pods (mean ms a token)"]
    for setup in SETUPS:
        held = [run for run in runs if run.setup == setup]
        if held:
            lines.append(
                f"    {setup:<18} constrained {_mean(held, 'constrained_ms'):.1f}, "
                f"others {_mean(held, 'plain_ms'):.1f}; "
                f"{_mean(held, 'on_plain_pods'):.0%} of constrained requests on plain pods; "
                f"found in {sum(run.is_found for run in held)} of {len(held)} runs"
            )
    return lines


def _mean(runs: list[ConstrainedRun], name: str) -> float:
    return fmean(getattr(run, name) for run in runs)


def lost_share(runs: list[ConstrainedRun], setup: str) -> float:
    """Return the time a token of constrained requests by that where no pod speculates; at worst."""
    without = {run.seed: run.constrained_ms for run in runs if run.setup == UNSPECULATED}
    return max((run.constrained_ms / without[run.seed] for run in runs if run.setup == setup), default=float("inf"))
