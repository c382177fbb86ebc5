"""A gateway as far as its canary is concerned: a real router and controller, and what they log."""

from __future__ import annotations

from typing import Any

from gateway.canary.controller import CanaryController
from gateway.canary.state_store import CanaryStore, MemoryStore
from gateway.pipeline.record import Outcome
from routing.blocks import Prompt
from routing.canary.change import StartedServer
from routing.canary.rollout import Rollout
from routing.canary.verdict import CanaryTerms
from routing.decision.placement import AttemptReceipt
from routing.decision.router import Router
from routing.facts import PodFacts, Role
from routing.pods import EngineShape, Pod, PodState
from routing.request import Api, Request, Usage
from scorers.registry import routings
from tests.gateway.samples import an_outcome

MODEL = "m"
STANDING, CANARY = ("http://a", "http://b"), "http://c"
TERMS = CanaryTerms("v2", revision="v2", traffic_share=0.25, min_comparisons=50, max_error_increase=0.2)


class Scene:
    """Two standing pods and one on trial."""

    def __init__(
        self,
        store: CanaryStore | None = None,
        terms: CanaryTerms = TERMS,
        roles: tuple[Role, Role, Role] | None = None,
        *,
        has_tenants: bool = False,
    ) -> None:
        self.logged: list[tuple[str, dict[str, Any]]] = []
        self.router = Router(routings()["warm"], exact_sizes=True)
        self.now_s = 0.0
        self.servers: dict[str, StartedServer] = {}
        for url, revision, role in zip(
            (*STANDING, CANARY), ("v1", "v1", "v2"), roles or (Role.EITHER,) * 3, strict=True
        ):
            facts = PodFacts(revision=revision, kv_connector="NixlConnector", block_size=16)
            self.router.put_pod(Pod(url, state=PodState.READY, models=frozenset({MODEL}), facts=facts))
            self.router.reshape_pod(url, [EngineShape(role=role, kv_tokens=100_000)])
        self.rollout = self.router.rollout = Rollout(terms)
        self.controller = CanaryController(
            self.rollout,
            self.router.fleet,
            store or MemoryStore(),
            servers=lambda: self.servers,
            log_event=lambda level, event, **fields: self.logged.append((event, {"level": level, **fields})),
            clock=lambda: self.now_s,
            wall_clock=lambda: 1e9 + self.now_s,
            has_tenants=lambda: has_tenants,
        )

    @property
    def events(self) -> list[str]:
        """What was logged, by event."""
        return [event for event, _ in self.logged]

    async def look(self, after_s: float = 1.0) -> None:
        """Have time pass, and the controller look."""
        self.now_s += after_s
        await self.controller.look()

    def serve(self, number: int, slower: float = 1.0, result: str = "ok", tenant: str | None = None) -> str:
        """One request from its choice to its end: times of the canary are `slower`, its end is `result`. Returns the
        pod that served it.
        """
        prompt = Prompt((1_000_000 + number,), range(500, 501), 500)
        request = Request(f"r{number}", Api.CHAT, MODEL, prompt, stream=True, tenant=tenant)
        placement = self.router.place(request, avoid=frozenset(), now_s=self.now_s, draw=0.5)
        pod = placement.engine.pod
        took_s = 0.1 * (slower if pod == CANARY else 1.0) * (1 + number % 7 / 100)
        placement.first_token(self.now_s + took_s)
        placement.release(self.now_s + took_s)
        self.controller.on_outcome(an_end(request, pod, took_s, result if pod == CANARY else "ok"))
        return pod

    async def serve_many(self, count: int, slower: float = 1.0, result: str = "ok") -> list[str]:
        """So many requests, with a look after each twenty. Returns their pods."""
        served = []
        for number in range(count):
            served.append(self.serve(number, slower, result))
            if number % 20 == 19:
                await self.look(0.1)
        return served


def an_end(request: Request, pod: str, ttft_s: float, result: str = "ok") -> Outcome:
    """A request that one pod answered in full, at twenty milliseconds a token, or failed."""
    is_ok = result == "ok"
    attempt = AttemptReceipt(*(pod, result, (), 3, 500, 0, 0, ttft_s, ttft_s if is_ok else None), model=request.model)
    return an_outcome(
        request=request,
        usage=Usage(500, 51, 0) if is_ok else None,
        attempts=(attempt,),
        ttft_s=ttft_s,
        duration_s=ttft_s + 1.0,
        decode_s=1.0 if is_ok else None,
        tier="default",
        tenant=request.tenant,
    )
