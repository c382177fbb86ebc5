"""Plays a scenario in virtual time: clients that retry, the real spine and router, simulated engines."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random

from bench.slo.fates import Fate, No
from bench.slo.policies import Policy
from bench.slo.retrying import wait_before_next
from bench.slo.scenario import Scenario
from bench.slo.traffic import Offered, draw_traffic
from gateway.outcome import Outcome
from gateway.refusals import refusal_headers, status_of
from routing.blocks import Prompt
from routing.request import Api, Request
from simulator.clock import run_virtually
from simulator.profile import Profile
from simulator.replica import MODEL, Replica
from simulator.sequence import Sequence
from simulator.virtual_pod import VirtualPod
from tenancy.tenants import Caller, Tenant


@dataclass(frozen=True, slots=True)
class Job:
    """One run. `load` in requests a second."""

    scenario: Scenario
    policy: Policy
    load: float
    seed: int


@dataclass(frozen=True, slots=True)
class Made:
    """What a replica is made of."""

    routing: str
    profile: Profile
    seed: int
    deadline_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a job."""

    job: Job
    fates: tuple[Fate, ...]
    length_s: float
    """Within which all was offered."""
    computed_tokens: int
    """Prompt tokens that engines prefilled and tokens they generated, whoever got them."""


def play(job: Job) -> Run:
    """Play a job to its end. The same job gives the same run."""
    return run_virtually(_play(job))


async def _play(job: Job) -> Run:
    venue = _Venue(job)
    loop = asyncio.get_running_loop()
    traffic = draw_traffic(job.scenario, job.load, job.seed)
    async with asyncio.TaskGroup() as clients:
        for number, offered in enumerate(traffic):
            if (wait_s := offered.at_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            clients.create_task(venue.ask(number, offered))
    told = [pod.statistics() for pod in venue.pods.values()]
    computed = sum(one.computed_prompt_tokens + one.generation_tokens for one in told)
    return Run(job, tuple(venue.fates), traffic[-1].at_s, computed)


class _Venue:
    """A gateway in front of engines, and the clients of one run."""

    def __init__(self, job: Job) -> None:
        scenario, loop = job.scenario, asyncio.get_running_loop()
        self.fates: list[Fate] = []
        self.pods = {f"pod-{number}": VirtualPod(scenario.profile, loop) for number in range(scenario.engines)}
        made = Made(job.policy.routing, scenario.profile, job.seed)
        self._replica = Replica(made, 0, self.pods, self._note, job.policy.make_room)
        self._draw = Random(f"{job.seed} retries").random
        self._clock = loop.time
        self._priority = {
            name: -tier.priority if job.policy.tells_engines else 0 for name, tier in scenario.tiers.items()
        }
        self._callers = {
            tenant.name: Caller(Tenant(tenant.name, tier=scenario.tiers[tenant.tier])) for tenant in scenario.tenants
        }
        self._asked: dict[str, Fate] = {}

    async def ask(self, number: int, offered: Offered) -> None:
        """One request, as often as its client tries."""
        fate = Fate(offered)
        self.fates.append(fate)
        for retries in range(99):
            refusal_status, headers = await self._try(f"{number}.{retries}", fate)
            if fate.is_answered:
                return
            wait_s = wait_before_next(refusal_status, headers, retries, self._draw())
            if wait_s is None:
                return
            await asyncio.sleep(wait_s)

    async def _try(self, name: str, fate: Fate) -> tuple[int, dict[str, str]]:
        """Status and headers of one attempt's answer."""
        offered, asked_s = fate.offered, self._clock()
        request = Request(name, Api.CHAT, MODEL, Prompt((), (), offered.prompt_tokens), stream=True)
        priority = self._priority[offered.tenant.tier]
        sequence = Sequence(name, offered.prompt_tokens, offered.answer_tokens, priority=priority)
        self._asked[name] = fate
        refusal = await self._replica.lead(request, sequence, self._callers[offered.tenant.name])
        del self._asked[name]
        if refusal is None:
            return 200, {}
        fate.noes.append(No(refusal.reason, self._clock() - asked_s))
        return status_of(refusal.reason), refusal_headers(refusal)

    def _note(self, outcome: Outcome) -> None:
        if outcome.reason is not None or outcome.ttft_s is None:
            return
        fate, now_s = self._asked[outcome.request.id], self._clock()
        fate.first_token_s = now_s - outcome.duration_s + outcome.ttft_s
        fate.end_s = now_s
        fate.cached_tokens = outcome.usage.cached_tokens or 0 if outcome.usage else 0
