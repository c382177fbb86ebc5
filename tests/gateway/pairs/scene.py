"""A gateway over simulated pods that share KV, where prefill on the decode pods is dear, so that pairs are chosen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from gateway.config.limits import Limits, Timeouts
from gateway.pairs.pairs import BootstrapServers, PairTransport
from gateway.pipeline.attempt import AttemptLimits, AttemptStatus
from gateway.pipeline.pipeline import RequestPipeline
from gateway.pipeline.record import Outcome
from gateway.relay.http_transport import PodKeys
from gateway.server.http_server import HttpServer
from routing.cost import CostModel, CostPrior
from routing.decision.placement import AttemptReceipt
from routing.decision.router import Router
from routing.facts import PodFacts, Role
from routing.pods import EngineShape, Pod, PodState
from scorers.registry import routings
from simulator.pod import SimulatedPod
from simulator.transfer.wiring import KvRole, Wiring
from tenancy.tenants import ANONYMOUS_CALLER
from tests.gateway.http.scripted import PATIENCE_S, until
from tests.simulator.asking import LONG, MODEL, Client, chat, running

CHAT = "/v1/chat/completions"
ASKED = chat(LONG, max_tokens=24, ignore_eos=True)

DEAR = CostPrior(seconds_per_token=0.01)

ROLES = {KvRole.PRODUCER: Role.PREFILL, KvRole.CONSUMER: Role.DECODE, KvRole.BOTH: Role.EITHER}


@dataclass
class Scene:
    """Everything that stands while a test runs."""

    router: Router
    front: HttpServer
    client: Client
    pods: list[tuple[SimulatedPod, Client]]
    outcomes: list[Outcome]
    ends: list[tuple[str, AttemptStatus]]

    async def ask(self, body: dict[str, Any] = ASKED, path: str = CHAT) -> Any:
        return await self.client.ask(path, body)

    @property
    def attempts(self) -> tuple[AttemptReceipt, ...]:
        """Of the last request that has ended."""
        return self.outcomes[-1].attempts

    async def fetched_tokens(self, number: int) -> float:
        """What a pod's metrics say that it fetched."""
        return await self.pods[number][1].metric("prompt_tokens_by_source_total", source="external_kv_transfer")

    async def is_quiet(self) -> None:
        """Nothing is left of anybody."""
        await until(lambda: not self.front.open_requests)
        ledger = self.router.ledger
        for engine in (engine for pod in self.router.fleet.pods for engine in pod.engines):
            is_busy = engine.role is Role.DECODE
            assert ledger.running[engine.slot] == (BUSY if is_busy else 0)
            assert ledger.kv_tokens[engine.slot] == (1 if is_busy else 0)
            assert ledger.prefill_tokens[engine.slot] == 0


BUSY = 1000
"""Sequences that decode on every decode pod, as far as the router knows."""


@asynccontextmanager
async def a_scene(
    connector: str = "NixlConnector",
    roles: Sequence[KvRole] = (KvRole.PRODUCER, KvRole.CONSUMER),
    facts: PodFacts | None = None,
    max_reasoning_tokens: int = 0,
    **wiring: Any,
) -> AsyncIterator[Scene]:
    """A gateway over one pod per role; nothing may be left over when the test ends."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        wirings = [Wiring(connector=connector, role=role, **wiring) for role in roles]
        pods = [
            await stack.enter_async_context(running(wiring=each, max_reasoning_tokens=max_reasoning_tokens))
            for each in wirings
        ]
        router = Router(routings()["warm"], costs=CostModel(DEAR))
        for (pod, _), role in zip(pods, roles, strict=True):
            put(router, pod, connector, role, facts or PodFacts())
        outcomes: list[Outcome] = []
        ends: list[tuple[str, AttemptStatus]] = []
        session = await stack.enter_async_context(aiohttp.ClientSession())
        pipeline = RequestPipeline(
            router,
            health=lambda url, end: ends.append((url, end)),
            observers=[outcomes.append],
            clock=loop.time,
            wall_clock=lambda: 1.8e9,
            draw=lambda: 0.0,
            limits=AttemptLimits(),
            run_pair=PairTransport(
                router.fleet, router.ledger, clock=loop.time, engine_ids=BootstrapServers(session, loop.time)
            ).run_attempt,
        )
        timeouts = Timeouts(upstream_connect_s=PATIENCE_S)
        front = HttpServer(
            pipeline, router, lambda *_: ANONYMOUS_CALLER, PodKeys(None), Limits(), timeouts, lambda: True
        )
        server = await loop.create_server(front.make_protocol, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        scene = Scene(router, front, Client(f"http://{host}:{port}", session), pods, outcomes, ends)
        try:
            yield scene
            await scene.is_quiet()
        finally:
            server.close()
            front.close()
            await until(lambda: not front.open_connections and not front.pool.open_count)


def put(router: Router, pod: SimulatedPod, connector: str, role: KvRole, facts: PodFacts) -> None:
    """A pod as a watcher would put it; the router believes those that decode to be busy."""
    bootstrap = pod.bootstrap_url.removeprefix("http://") if pod.bootstrap_url else None
    reported = replace(facts, kv_connector=connector, kv_role=role.value, role=ROLES[role], bootstrap=bootstrap)
    router.put_pod(Pod(pod.url, PodState.READY, frozenset({MODEL}), facts=reported, ready_since_s=-1e6))
    router.reshape_pod(pod.url, [EngineShape(None, reported.effective_role, 16_000, 16)])
    known = router.fleet.pod(pod.url)
    assert known is not None
    if role is KvRole.CONSUMER:
        slot = known.engines[0].slot
        charge = router.ledger.charge(slot, prefill_tokens=0, prefill_s=0, kv_tokens=1, sequences=BUSY, now_s=0.0)
        router.ledger.prefill_done(charge, 0.0)
