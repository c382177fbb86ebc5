"""Gateways that share pods in virtual time, each with its warm-ups; replays are received by a list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gateway.warmup.controller import WarmupController
from gateway.warmup.prompt_store import KeptPrompt, PromptStore
from gateway.warmup.replay import ReplayEnd, ReplayReport
from routing.facts import Role
from routing.pods import Engine, PodState
from routing.request import Api, Usage
from simulator.clock import VirtualLoop
from supply.policy import ControlMode, SupplyPolicy
from tenancy.tenants import ANONYMOUS_CALLER, Caller
from tests.routing.engines import MODEL, TALK, add_pod, ask, router_of

ACT = SupplyPolicy(prewarm=ControlMode.ACT, prewarm_max_s=10.0)

REPLAY_S = 0.5

PREFIXES = 3


class Received(list[tuple[int, str, int]]):
    """Replays in order: gateway, pod, and last block of the prefix."""

    end: ReplayEnd = ReplayEnd.COMPUTED
    takes_s: float = REPLAY_S
    failing_tenant: str = ""
    """Whose prompts a pod cannot compute."""


class Gateway:
    """One gateway; made within a loop."""

    def __init__(self, number: int, gateways: list[Gateway], received: Received, policy: SupplyPolicy = ACT) -> None:
        loop = asyncio.get_running_loop()
        self.number, self.gateways, self.received = number, gateways, received
        self.router = router_of(2)
        self.store = PromptStore(
            max_bytes=1e6, max_age_s=600.0, keeps_text=True, clock=loop.time, shorten=lambda _a, _b, size: (b"", size)
        )
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.wait_share = 0.0
        self.ready_s: dict[str, float] = {}
        self.controller = WarmupController(
            policy,
            self.router,
            self.store,
            self._send,
            end_warmup=self._let_go,
            pools=dict,
            wait_share=lambda: self.wait_share,
            clock=loop.time,
            log_event=lambda _, event, **fields: self.events.append((event, fields)),
        )
        if len(gateways) or number:
            self.controller.share(self._publish, lambda: number)
        gateways.append(self)
        self.is_cut = False
        self.running = loop.create_task(self.controller.run())

    def _publish(self, payload: bytes) -> None:
        now_s = asyncio.get_running_loop().time()
        for other in self.gateways:
            if other is not self and not self.is_cut and not other.is_cut:
                other.controller.take(self.number, payload, now_s)

    async def _send(self, engine: Engine, prompt: KeptPrompt, _id: str, timeout_s: float) -> ReplayReport:
        self.received.append((self.number, engine.pod, prompt.key))
        await asyncio.sleep(min(self.received.takes_s, timeout_s))
        fails = prompt.tenant is not None and prompt.tenant == self.received.failing_tenant
        return ReplayReport(ReplayEnd.FAILED if fails else self.received.end, Usage(1_000, 1, 0))

    def learn(self, caller: Caller = ANONYMOUS_CALLER) -> None:
        """Serve requests with a few prefixes that they share."""
        for number in range(4 * PREFIXES):
            request = ask(b"%d" % (number % PREFIXES) + TALK + b"%d" % number * 300, api=Api.CHAT)
            self.store.observe(request, b"", "/v1/chat/completions", caller)

    def add(self, url: str, *adapters: str, region: str | None = None, role: Role = Role.EITHER) -> bool:
        """A pod has become ready. Returns whether it is held back."""
        add_pod(self.router, url, adapters=adapters)
        self.router.fleet.override_role(url, role)
        known = self.router.fleet.pod(url)
        assert known is not None
        ready = replace(known, region=region)
        self.router.put_pod(replace(ready, state=PodState.STARTING))
        is_held = self.controller.should_warm(ready)
        self.stand(url, PodState.WARMING if is_held else PodState.READY)
        return is_held

    def stand(self, url: str, state: PodState) -> None:
        """What the watcher finds of a pod."""
        known = self.router.fleet.pod(url)
        assert known is not None
        self.router.put_pod(replace(known, state=state))
        if state is PodState.READY:
            self.ready_s[url] = asyncio.get_running_loop().time()

    def _let_go(self, url: str) -> None:
        known = self.router.fleet.pod(url)
        if known is not None and known.state is PodState.WARMING:
            self.stand(url, PodState.READY)

    def holds(self, url: str) -> bool:
        """Whether a request could not go there yet."""
        return url not in {engine.pod for engine in self.router.fleet.eligible(MODEL).engines}


async def until(is_so: Callable[[], bool], max_s: float = 60.0) -> float:
    """Wait in virtual time until it is so. Returns how long that took."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "in virtual time only"
    begun_s = loop.time()
    while not is_so():
        assert loop.time() - begun_s < max_s
        await asyncio.sleep(0.05)
    return loop.time() - begun_s
