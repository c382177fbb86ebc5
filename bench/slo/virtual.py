"""Plays a scenario in virtual time: clients that retry, the real spine and router, simulated engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from bench.slo.clients import persist
from bench.slo.fates import No, RequestResult
from bench.slo.figures import Figures, figures_of
from bench.slo.gateways import ONE, PAUSE_EVERY_S, PAUSE_S, Gateways, Link, fault_of
from bench.slo.policies import Policy
from bench.slo.scenario import Scenario
from bench.slo.traffic import Offered, draw_traffic, recorded_lengths
from gateway.pipeline.record import Outcome
from gateway.pipeline.rejections import rejection_headers, status_of
from routing.blocks import Prompt
from routing.pods import PodState
from routing.request import Api, Request
from simulator.clock import run_virtually
from simulator.exchange import Exchange
from simulator.profile import Profile
from simulator.replica import MODEL, Replica
from simulator.sequence import Sequence as EngineSequence
from simulator.split import Split
from simulator.virtual_pod import VirtualPod
from tenancy.tenants import Caller, Tenant

PROBED_S = 1.0
"""How long it takes until a gateway knows that an engine has gone or is back, without requests to it."""

BLOCK_TOKENS = Profile().block_size


@dataclass(frozen=True, slots=True)
class Job:
    """One run. `load` in requests a second; `resumes`: streams whose engine dies go on elsewhere."""

    scenario: Scenario
    policy: Policy
    load: float
    seed: int
    resumes: bool = False
    gateways: Gateways = ONE


@dataclass(frozen=True, slots=True)
class Made:
    """What a replica is made of."""

    routing: str
    profile: Profile
    seed: int
    deadline_s: float = 600.0
    split: Split | None = None
    knows_caches: bool = False


def play(job: Job) -> Figures:
    """Play a job to its end. The same job gives the same figures. Raises TraceFault where its recording is missing."""
    scenario = job.scenario
    recorded = recorded_lengths(scenario.trace) if scenario.trace else ()
    traffic = draw_traffic(scenario, job.load, job.seed, recorded)
    fates, computed_tokens = run_virtually(_play(job, traffic))
    return figures_of(scenario, fates, traffic[-1].at_s, computed_tokens)


def fates_of(job: Job) -> list[RequestResult]:
    """What became of every request of a job, in the order in which they were offered."""
    fates, _ = run_virtually(_play(job, draw_traffic(job.scenario, job.load, job.seed)))
    return fates


async def _play(job: Job, traffic: Sequence[Offered]) -> tuple[list[RequestResult], int]:
    """Return the result of each request, and how many tokens engines prefilled and generated in all."""
    loop = asyncio.get_running_loop()
    venue = _Venue(job, traffic[-1].at_s)
    async with asyncio.TaskGroup() as clients:
        for number, offered in enumerate(traffic):
            if (wait_s := offered.at_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            clients.create_task(venue.ask(number, offered))
    venue.close()
    pod_statistics = [pod.statistics() for pod in venue.pods.values()]
    return venue.fates, sum(one.computed_prompt_tokens + one.generation_tokens for one in pod_statistics)


class _Venue:
    """A gateway in front of engines, and the clients of one run."""

    def __init__(self, job: Job, length_s: float) -> None:
        scenario, loop = job.scenario, asyncio.get_running_loop()
        self.fates: list[RequestResult] = []
        self.pods = {f"pod-{number}": VirtualPod(scenario.profile, loop) for number in range(scenario.engines)}
        made = Made(job.policy.routing, scenario.profile, job.seed)
        gateways = job.gateways
        self._gateways = gateways
        self._replicas = [
            Replica(made, number, self.pods, self._note, job.policy.make_room, resumes=job.resumes)
            for number in range(gateways.count)
        ]
        for replica in self._replicas:
            if (admission := replica.room.admission) is not None:
                admission.tiers = scenario.tiers  # As a policy file would tell them.
                admission.share_engines(gateways.count if gateways.link is Link.COUNTED else 1)
        self._exchange = _joined(self._replicas, gateways, length_s)
        self._lookouts = [loop.create_task(one.look()) for one in self._replicas] if gateways.count > 1 else []
        self._draw = Random(f"{job.seed} retries").random
        self._gateway_draw = Random(f"{job.seed} gateways").random
        self._clock = loop.time
        self._priority = {
            name: -tier.priority if job.policy.knows_engines else 0 for name, tier in scenario.tiers.items()
        }
        self._callers = {
            tenant.name: Caller(Tenant(tenant.name, tier=scenario.tiers[tenant.tier], weight=tenant.weight))
            for tenant in scenario.tenants
        }
        self._outcomes: dict[str, Outcome] = {}
        if loss := scenario.loss:
            url = f"pod-{loss.engine}"
            loop.call_at(loss.at * length_s, self.pods[url].lose)
            loop.call_at(loss.at * length_s + PROBED_S, self._stand, url, PodState.UNREADY)
            loop.call_at(loss.back * length_s, self.pods[url].revive)
            loop.call_at(loss.back * length_s + PROBED_S, self._stand, url, PodState.READY)

    def close(self) -> None:
        """End what runs beside the requests."""
        for lookout in self._lookouts:
            lookout.cancel()
        if self._exchange is not None:
            self._exchange.close()

    def _stand(self, url: str, state: PodState) -> None:
        for replica in self._replicas:
            replica.stand(url, state)

    async def ask(self, number: int, offered: Offered) -> None:
        """One request, as often as its client tries."""
        result = RequestResult(offered)
        self.fates.append(result)
        await persist(lambda retries: self._try(number, retries, result), self._draw)

    async def _try(self, number: int, retries: int, result: RequestResult) -> tuple[int, Mapping[str, str]]:
        """Status and headers of one attempt's answer."""
        offered, sent_s, name = result.offered, self._clock(), f"{number}.{retries}"
        request = Request(name, Api.CHAT, MODEL, _prompt(number, offered), stream=True, retry_count=retries)
        priority = self._priority[offered.tenant.tier]
        sequence = EngineSequence(
            name, offered.prompt_tokens, offered.answer_tokens, request.prompt.blocks, priority=priority
        )
        gateway = self._gateways.pick(self._gateway_draw()) if len(self._replicas) > 1 else 0
        rejection = await self._replicas[gateway].run_request(request, sequence, self._callers[offered.tenant.name])
        outcome = self._outcomes.pop(name)
        if rejection is not None:
            started = outcome.ttft_s is not None
            result.noes.append(No(rejection.reason, self._clock() - sent_s, started))
            # Once a stream has begun its head is out: the client hears of the end, and does not ask again.
            return (200, {}) if started else (status_of(rejection.reason), rejection_headers(rejection))
        if outcome.ttft_s is not None:
            result.first_token_s = sent_s + outcome.ttft_s
            result.end_s = self._clock()
            result.cached_tokens = outcome.usage.cached_tokens or 0 if outcome.usage else 0
        return outcome.status, {}

    def _note(self, outcome: Outcome) -> None:
        self._outcomes[outcome.id] = outcome


def _joined(replicas: Sequence[Replica], gateways: Gateways, length_s: float) -> Exchange | None:
    """Join the gateways by their link, and schedule its fault. None where nothing links them."""
    if len(replicas) < 2 or not gateways.has_redis:
        return None
    exchange, loop = Exchange(delay_s=gateways.delay_s, beats=True), asyncio.get_running_loop()
    for replica in replicas:
        exchange.join(replica.router, replica.room.admission)
    begin: dict[Link, Callable[[], None]] = {
        Link.DIES: exchange.drop,
        Link.STALLS: exchange.stall,
        Link.ONE_SIDED: lambda: exchange.isolate(0),
    }
    begins_s, ends_s = fault_of(length_s)
    if gateways.link is Link.PAUSES:
        for number in range(int((ends_s - begins_s) / PAUSE_EVERY_S)):
            loop.call_at(begins_s + number * PAUSE_EVERY_S, exchange.pause, 0)
            loop.call_at(begins_s + number * PAUSE_EVERY_S + PAUSE_S, exchange.resume, 0)
    elif gateways.link in begin:
        loop.call_at(begins_s, begin[gateways.link])
        loop.call_at(ends_s, exchange.restore)
    return exchange


def _prompt(number: int, offered: Offered) -> Prompt:
    """All prompts differ from their first block on, and a retry has the same prompt."""
    if offered.prompt_tokens < BLOCK_TOKENS:
        return Prompt((), (), offered.prompt_tokens)
    return Prompt((number,), (BLOCK_TOKENS,), offered.prompt_tokens)
