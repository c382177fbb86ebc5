"""A shell whose legs go as a test says, and a fleet in virtual time whose decode pods are believed to be busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.limits.accounts import RequestMeter
from gateway.pairs.pairs import PairTransport
from gateway.pipeline.attempt import AttemptLimits, AttemptResult, AttemptStatus, PrefillRequest, PrefillResult
from gateway.pipeline.pipeline import RequestPipeline
from gateway.pipeline.record import Outcome
from routing.blocks import Prompt
from routing.decision.placement import AttemptReceipt, Placement
from routing.decision.router import Router
from routing.facts import PodFacts, Role
from routing.pods import EngineShape, Pod, PodState
from routing.rejection import RequestRejected
from routing.request import Api, Request, Usage
from scorers.registry import routings
from simulator.clock import run_virtually

MODEL = "m"

TOLD = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "e",
    "remote_request_id": "chatcmpl-r",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "remote_block_ids": [[1, 2]],
    "tp_size": 1,
}

USAGE = Usage(16_000, 20, 0)

ANSWERED = AttemptResult(AttemptStatus.OK, 200, started=True, usage=USAGE)

GOOD = PrefillResult(AttemptStatus.OK, 200, TOLD, Usage(16_000, 1, 4_000))

NEVER_S = 1e6


@dataclass(frozen=True)
class Part:
    """How one leg goes: it ends after so long, a decode leg with a first token before that."""

    ends: Any = None
    after_s: float = 0.1
    token_after_s: float | None = None


@dataclass
class PairCarrier:
    """Plays prefill legs and decode legs in the order they are asked for, the last of each again and again."""

    prefills: Sequence[Part] = (Part(GOOD),)
    decodes: Sequence[Part] = (Part(ANSWERED, token_after_s=0.05),)
    legs: list[tuple[str, str]] = field(default_factory=list)
    """(What, pod) of every leg."""
    orders: list[PrefillRequest] = field(default_factory=list)
    handed: list[bytes | None] = field(default_factory=list)
    """What each decode leg was told; None where it was no pair's."""
    refusals: list[RequestRejected] = field(default_factory=list)
    under_way: int = 0

    async def prefill(self, placement: Placement, order: PrefillRequest, by_s: float) -> PrefillResult | None:
        assert placement.prefill is not None
        part = self._next("prefill", self.prefills, placement.prefill.engine.pod)
        self.orders.append(order)
        ended = await self._play(part, by_s)
        return part.ends if ended else PrefillResult(AttemptStatus.TIMEOUT)

    async def run_attempt(self, placement: Placement, first_byte_by_s: float) -> AttemptResult:
        part = self._next("decode", self.decodes, placement.engine.pod)
        self.handed.append(None if placement.handover is None else placement.handover.fields)
        if part.token_after_s is not None:
            self.under_way += 1
            try:
                await asyncio.sleep(part.token_after_s)
            finally:
                self.under_way -= 1
            placement.first_token(asyncio.get_running_loop().time())
        ended = await self._play(part, first_byte_by_s)
        leg: AttemptResult = part.ends if ended else AttemptResult(AttemptStatus.TIMEOUT)
        return replace_begun(leg) if part.token_after_s is not None else leg

    def _next(self, what: str, parts: Sequence[Part], pod: str) -> Part:
        before = sum(kind == what for kind, _ in self.legs)
        self.legs.append((what, pod))
        return parts[min(before, len(parts) - 1)]

    async def _play(self, part: Part, by_s: float) -> bool:
        now_s = asyncio.get_running_loop().time()
        self.under_way += 1
        try:
            await asyncio.sleep(min(part.after_s, max(0.0, by_s - now_s)))
        finally:
            self.under_way -= 1
        return now_s + part.after_s <= by_s

    def open_meter(self, tab: RequestMeter) -> None: ...

    def reject(self, rejection: RequestRejected) -> None:
        self.refusals.append(rejection)


def replace_begun(leg: AttemptResult) -> AttemptResult:
    """The same, of an answer that the client has begun to get."""
    return AttemptResult(leg.end, leg.status, started=True, usage=leg.usage, detail=leg.detail)


class Ground:
    """A router over prefill pods `http://p0`, ... and decode pods `http://d0`, ..., and a spine over it."""

    def __init__(self, prefill: int = 2, decode: int = 2, *, connector: str = "NixlConnector") -> None:
        self.router = Router(routings()["warm"], exact_sizes=True)
        self.outcomes: list[Outcome] = []
        self.ends: list[tuple[str, AttemptStatus]] = []
        facts = PodFacts(kv_connector=connector, bootstrap="127.0.0.1:8998")
        for name, role in [
            *((f"p{at}", Role.PREFILL) for at in range(prefill)),
            *((f"d{at}", Role.DECODE) for at in range(decode)),
        ]:
            self._put(f"http://{name}", replace(facts, role=role))
        loop = asyncio.get_running_loop()
        self.pipeline = RequestPipeline(
            self.router,
            health=lambda pod, end: self.ends.append((pod, end)),
            observers=[self.outcomes.append],
            clock=loop.time,
            wall_clock=lambda: 1.8e9,
            draw=lambda: 0.5,
            limits=AttemptLimits(),
            run_pair=PairTransport(
                self.router.fleet, self.router.ledger, clock=loop.time, engine_ids=KnownIds()
            ).run_attempt,
        )

    @property
    def attempts(self) -> tuple[AttemptReceipt, ...]:
        """Of the last request."""
        return self.outcomes[-1].attempts

    def is_empty(self) -> bool:
        """Whether nothing is charged anywhere but for what was there before."""
        ledger, engines = self.router.ledger, [each for pod in self.router.fleet.pods for each in pod.engines]
        return all(
            ledger.running[each.slot] == (BUSY if each.role is Role.DECODE else 0)
            and ledger.kv_tokens[each.slot] == (1 if each.role is Role.DECODE else 0)
            and not ledger.prefill_tokens[each.slot]
            for each in engines
        )

    async def lead(self, carrier: PairCarrier, *, tokens: int = 16_000, stream: bool = True) -> PairCarrier:
        ends = tuple(range(1000, tokens + 1, 1000))
        prompt = Prompt(tuple(hash((tokens, end)) for end in ends), ends, tokens)
        await self.pipeline.handle_request(Request("r", Api.CHAT, MODEL, prompt, stream=stream, max_tokens=20), carrier)
        return carrier

    def _put(self, url: str, facts: PodFacts) -> None:
        router = self.router
        router.put_pod(Pod(url, PodState.READY, frozenset({MODEL}), facts=facts, ready_since_s=-1e6))
        router.reshape_pod(url, [EngineShape(None, facts.effective_role, 400_000, 16)])
        if facts.effective_role is Role.DECODE:
            pod = router.fleet.pod(url)
            assert pod is not None
            charge = router.ledger.charge(
                pod.engines[0].slot, prefill_tokens=0, prefill_s=0, kv_tokens=1, sequences=BUSY, now_s=0.0
            )
            router.ledger.prefill_done(charge, 0.0)


BUSY = 200
"""Sequences that decode on every decode pod, as far as the router knows."""


class KnownIds:
    """A bootstrap server that always answers."""

    async def engine_id(self, address: str, rank: int) -> str:
        return "e"

    def forget(self, address: str) -> None: ...


def led(carrier: PairCarrier, ground: Callable[[], Ground] = Ground, **requested: Any) -> tuple[PairCarrier, Ground]:
    """One request to its end."""

    async def play() -> tuple[PairCarrier, Ground]:
        stage = ground()
        await stage.lead(carrier, **requested)
        return carrier, stage

    played = run_virtually(play())
    assert played[1].is_empty()
    assert played[0].under_way == 0
    return played
