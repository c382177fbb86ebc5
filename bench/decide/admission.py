"""The same decisions with admission: every request has an objective, and so has every running stream.

Two scenes that differ only in that take turns, so that whatever disturbs one disturbs the other. A decision with
admission is all that a request passes without a queue: at arrival, at the gate in the middle of the routing
decision, and into the accounts of service and of what streams can bear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from random import Random
from statistics import median

from bench.decide.cases import BURST, seconds_of
from bench.decide.scene import ANSWER_TOKENS, MODEL, Scene, usage_of
from routing.blocks import cut_prompt
from routing.candidates import NoEngineAdmissible
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.request import Request
from tenancy.admission import Admission
from tenancy.objective import Tier, objective_of
from tenancy.queue import WaitingRequest
from tenancy.tenants import Caller, Tenant

TIERS = (
    Tier("gold", 10, ttft_s=1.0, ttft_uncached_factor=2.0, tpot_s=0.05, guaranteed_share=0.5),
    Tier("silver", 0, ttft_s=3.0, ttft_uncached_factor=3.0, tpot_s=0.08, guaranteed_share=0.3),
    Tier("bronze", -10, ttft_s=15.0, ttft_uncached_factor=5.0, tpot_s=0.15),
)
SHARES = (0.2, 0.3, 0.5)
CALLERS = [(Caller(Tenant(tier.name, tier=tier)), objective_of(tier)) for tier in TIERS]
OBSERVED_ANSWERS = 500
"""Per tenant, so that there is a history to predict from."""


class AdmissionScene(Scene):
    """A scene in which every request asks admission."""

    def __init__(self, pods: int, tokens: int, *, interval_s: float) -> None:
        self.barred = 0
        self._callers = cycle(Random(2).choices(CALLERS, SHARES, k=997))
        self._waiters: dict[int, WaitingRequest] = {}
        super().__init__(pods, tokens, interval_s=interval_s)

    def decide(self, request: Request) -> Placement:
        caller, objective = next(self._callers)
        admission, now_s = self._admission, self._now_s
        waiter = admission.arrive(request, caller, objective, came_s=now_s, now_s=now_s, draw=0.5)
        assert not waiter.queue.must_wait(objective.tier)
        try:
            placement = admission.place(waiter, frozenset(), now_s=now_s, draw=0.5)
        except NoEngineAdmissible:
            self.barred += 1
            admission.leave(waiter)
            return super().decide(request)
        self._waiters[placement.charge.number] = waiter
        return placement

    def _end(self, placement: Placement) -> None:
        waiter = self._waiters.pop(placement.charge.number, None)
        if waiter is not None:
            self._admission.settle(waiter, placement, usage_of(placement), self._now_s)
            self._admission.leave(waiter)
        super()._end(placement)

    def _fleet(self, pods: int, tokens: int) -> Router:
        router = super()._fleet(pods, tokens)
        self._admission = Admission(router)
        self._admission.tiers = {tier.name: tier for tier in TIERS}
        for caller, _ in CALLERS:
            for _ in range(OBSERVED_ANSWERS):
                self._admission.forecast.observe(caller.tenant.name, MODEL, ANSWER_TOKENS)
        return router


@dataclass(frozen=True, slots=True)
class AdmissionRow:
    """One line of the table: medians in microseconds."""

    pods: int
    tokens: int
    without_us: float
    with_us: float
    barred: float
    """Part of the decisions that found no engine that might take the request, and were made without admission."""

    @property
    def times(self) -> float:
        return self.with_us / self.without_us


def measure_row(pods: int, tokens: int, rounds: int) -> AdmissionRow:
    """Decisions without admission and with it, by turns; an engine gets a request a second."""
    scenes = (Scene(pods, tokens, interval_s=1 / pods), AdmissionScene(pods, tokens, interval_s=1 / pods))
    times: tuple[list[float], list[float]] = ([], [])
    barred_before = scenes[1].barred
    for number in range(rounds):
        placements: list[tuple[Scene, Placement]] = []
        for turn in range(BURST):
            for which in (0, 1) if (number + turn) % 2 else (1, 0):
                seconds, placement = timed_decision(scenes[which], is_new=turn % 2 == 0)
                times[which].append(seconds)
                placements.append((scenes[which], placement))
        for scene, placement in placements:
            scene.settle_in(placement)
    without_us, with_us = (median(each) * 1e6 for each in times)
    return AdmissionRow(pods, tokens, without_us, with_us, (scenes[1].barred - barred_before) / len(times[1]))


def timed_decision(scene: Scene, *, is_new: bool) -> tuple[float, Placement]:
    """Place the next request of a scene, of a new conversation or of one under way; returns seconds and placement."""
    session, text = None, b""
    if is_new:
        text = scene.new_text()
    else:
        conversation = scene.conversation()
        session, text = conversation.session, conversation.next_turn()
    request = scene.request(session, cut_prompt(text, 0))
    return seconds_of(lambda: scene.decide(request))


def admission_table(rows: Sequence[AdmissionRow]) -> str:
    """The rows as lines of text."""
    lines = [f"{'pods':>5} {'tokens':>9} | {'without':>8} {'admission':>9} {'times':>6} {'barred':>7}"]
    lines += [
        f"{row.pods:5} {row.tokens:9,} | {row.without_us:8.1f} {row.with_us:9.1f} {row.times:6.2f} {row.barred:7.1%}"
        for row in rows
    ]
    return "\n".join(lines)
