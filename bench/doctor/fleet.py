"""The fleet in virtual time: requests through one gateway to simulated pods, and what the gateway measures of them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random

from bench.doctor.plans import BLOCK, PodPlan
from bench.doctor.pods import SimulatedRank, start_pod
from bench.doctor.traffic import Drawn, Traffic
from diagnosis.request_times import RequestClass, RequestMoments, RequestTimes, TimesBuilder, TrafficKey, split
from routing.facts import Role
from simulator.sequence import Milestone, MilestoneKind, Sequence
from simulator.virtual_pod import LOST, VirtualPod

EVENTS_S = 40.0
"""For how long single requests are kept for the gateway's view."""

TIMES_S = 15.0
"""Length of one slice of request times; four of them are shown."""

MAX_ATTEMPTS = 4

STALLED_S = 10.0
"""Seconds after which the gateway gives up a transfer of KV."""

CONSTRAINED_ACCEPTANCE = 0.15
"""Share of drafted tokens that a grammar lets through."""


@dataclass(slots=True)
class GatewayCosts:
    """What the gateway's process needs; a scenario may change it. Seconds."""

    request_s: float = 0.012
    redis_s: float = 0.001


@dataclass(frozen=True, slots=True)
class Ended:
    """One ended request, as the gateway's view of its pod needs it."""

    at_s: float
    drawn: Drawn
    predicted_tokens: int
    cached_tokens: int
    first_at_s: float
    first_token_s: float
    gap_s: float | None


@dataclass(slots=True)
class PodView:
    """What the gateway remembers of one pod."""

    sent: deque[tuple[float, Drawn]] = field(default_factory=deque)
    ended: deque[Ended] = field(default_factory=deque)
    handovers: deque[tuple[float, float]] = field(default_factory=deque)
    """Of a pod that prefills for others: when a first token came, and the seconds since it had answered."""
    pairs: deque[tuple[float, bool]] = field(default_factory=deque)
    """When a pair that it was a half of had its first token, or had lost its KV (True)."""
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)
    """Blocks that were sent there, oldest first: the approximate prefix index."""

    def trim(self, now_s: float) -> None:
        """Drop what is old."""
        while self.sent and self.sent[0][0] < now_s - EVENTS_S:
            self.sent.popleft()
        while self.ended and self.ended[0].at_s < now_s - EVENTS_S:
            self.ended.popleft()
        while self.pairs and self.pairs[0][0] < now_s - EVENTS_S:
            self.pairs.popleft()
        while self.handovers and self.handovers[0][0] < now_s - EVENTS_S:
            self.handovers.popleft()


@dataclass(slots=True)
class Running:
    """One request on its way."""

    number: int
    drawn: Drawn
    arrived_s: float
    placed_s: float = 0.0
    attempts: int = 0
    pod: str = ""
    predicted: int = 0
    prefilled_s: float | None = None
    prefilled_by: str = ""
    first_s: float | None = None


class Fleet:
    """All pods, the gateway in front of them, and the traffic."""

    def __init__(self, plans: dict[str, PodPlan], seed: int, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.draws = Random(seed * 7 + 1)
        self.traffic = Traffic(seed)
        self.costs = GatewayCosts()
        self.pods = {address: start_pod(plan, loop, -10_000.0) for address, plan in plans.items()}
        self.views = {address: PodView() for address in plans}
        self._capacities = {address: plan.profile.kv_capacity_tokens // BLOCK for address, plan in plans.items()}
        """Blocks that the approximate index believes a pod to hold: what it had when the gateway began."""
        self.excluded: set[str] = set()
        """Pods that the gateway does not choose."""
        self.uses_prefill = True
        self.pins_rank = False
        self.failed = 0
        self.answered = 0
        self.busy_until_s = 0.0
        self.busy_s = 0.0
        self.lags: deque[tuple[float, float]] = deque()
        self.redis: deque[tuple[float, float]] = deque()
        self.queue_means: dict[str, float] = {}
        """By pod: mean seconds in the engine's queue, as its last page had it."""
        self._slices: deque[dict[TrafficKey, RequestTimes]] = deque(maxlen=4)
        self._times = TimesBuilder(0.0)
        self._number = 0
        self._paces: dict[SimulatedRank, float] = {}

    def start(self) -> None:
        """Begin to receive requests."""
        for pool in self.traffic.load.rates:
            self._next_arrival(pool)
        self._next_long_prompt()
        self._slice()
        self._probe()

    # --- Arrivals -----------------------------------------------------------------------------------------------------

    def _next_arrival(self, pool: str) -> None:
        rate = self.traffic.load.rates[pool]
        self.loop.call_later(self.traffic.wait_s(rate), self._arrive, pool)

    def _arrive(self, pool: str) -> None:
        self._next_arrival(pool)
        self._receive(self.traffic.draw(pool))

    def _next_long_prompt(self) -> None:
        rate = self.traffic.load.long_prompts_per_s
        if rate:
            self._receive(self.traffic.long_prompt("http://chat-0:8000"))
        self.loop.call_later(self.traffic.wait_s(rate or 1.0), self._next_long_prompt)

    def _receive(self, drawn: Drawn) -> None:
        """Hold the request until the gateway's process gets to it, and Redis has answered."""
        now = self.loop.time()
        self._number += 1
        redis_s = self.costs.redis_s * self.draws.lognormvariate(0.0, 0.4)
        self.redis.append((now, redis_s))
        self.busy_until_s = max(self.busy_until_s, now) + self.costs.request_s
        self.busy_s += self.costs.request_s
        request = Running(self._number, drawn, now)
        self.loop.call_at(self.busy_until_s + redis_s, self._place, request)

    def _probe(self) -> None:
        """Measure the lag of the loop four times a second."""
        now = self.loop.time()
        self.lags.append((now, max(self.busy_until_s - now, 0.0)))
        for held in (self.lags, self.redis):
            while held and held[0][0] < now - EVENTS_S:
                held.popleft()
        self.loop.call_later(0.25, self._probe)

    def _slice(self) -> None:
        self._slices.append(self._times.close(self.loop.time()))
        self.loop.call_later(TIMES_S, self._slice)

    def times(self) -> list[dict[TrafficKey, RequestTimes]]:
        """Return the request times of the last minute, by slice."""
        return list(self._slices)

    # --- Choice -------------------------------------------------------------------------------------------------------

    def _place(self, request: Running) -> None:
        request.attempts += 1
        drawn = request.drawn
        if drawn.pool == "split":
            self._place_split(request)
            return
        candidates = self._eligible(drawn.pool, Role.EITHER)
        if drawn.pod in candidates:
            candidates = [drawn.pod]
        choice = self._best(candidates, drawn)
        if choice is None:
            self._retry(request)
            return
        address, rank, request.predicted = choice
        self._send(request, address, rank, None)

    def _eligible(self, pool: str, role: Role) -> list[str]:
        return [
            address
            for address, pod in self.pods.items()
            if pod.plan.pool == pool and pod.plan.role is role and address not in self.excluded
        ]

    def _best(self, candidates: Iterable[str], drawn: Drawn) -> tuple[str, SimulatedRank, int] | None:
        """Return the engine where the prompt is computed soonest: uncached tokens and the requests before it."""
        best: tuple[float, str, SimulatedRank, int] | None = None
        for address in candidates:
            predicted = self._predicted(address, drawn.blocks)
            ranks = self.pods[address].ranks
            for rank in ranks[:1] if self.pins_rank else ranks:
                seconds = (drawn.prompt_tokens - predicted) / 8_000.0 + 0.15 * rank.outstanding
                if best is None or seconds < best[0]:
                    best = (seconds, address, rank, predicted)
        return best[1:] if best is not None else None

    def _predicted(self, address: str, blocks: tuple[int, ...]) -> int:
        held = self.views[address].blocks
        count = 0
        for block in blocks:
            if block not in held:
                break
            count += 1
        return count * BLOCK

    def _emptiest(self, candidates: Iterable[str]) -> str | None:
        """Return the pod with the fewest requests."""
        return min(candidates, key=lambda each: (self.pods[each].ranks[0].outstanding, each), default=None)

    def _place_split(self, request: Running) -> None:
        decode = self._emptiest(self._eligible("split", Role.DECODE))
        prefill = self._emptiest(self._eligible("split", Role.PREFILL)) if self.uses_prefill else None
        if decode is None:
            self._retry(request)
        elif prefill is None:
            self._send(request, decode, self.pods[decode].ranks[0], None)
        else:
            self._prefill(request, prefill)

    # --- Attempts -----------------------------------------------------------------------------------------------------

    def _sequence(self, request: Running) -> Sequence:
        drawn = request.drawn
        name = f"{request.number}.{request.attempts}"
        return Sequence(name, drawn.prompt_tokens, drawn.output_tokens, drawn.blocks)

    def _prefill(self, request: Running, address: str) -> None:
        now = self.loop.time()
        request.placed_s = request.placed_s or now
        self._note_sent(request, address)
        rank = self.pods[address].ranks[0]
        sequence = replace(self._sequence(request), output_tokens=1, is_held=True)

        def reach(milestone: Milestone) -> None:
            if milestone.kind is not MilestoneKind.FINISHED:
                return
            if milestone.reason == LOST:
                self._retry(request)
                return
            request.prefilled_s, request.prefilled_by = self.loop.time(), address
            self.loop.call_soon(self._decode, request, rank.pod, sequence.sequence_id)

        def submit() -> None:
            try:
                rank.submit(sequence, reach)
            except ConnectionError:
                self._retry(request)

        self._reach(address, rank, submit)

    def _decode(self, request: Running, source: VirtualPod, held_as: str) -> None:
        address = self._emptiest(self._eligible("split", Role.DECODE))
        if address is None:
            source.let_go(held_as)
            self._retry(request)
            return
        self._send(request, address, self.pods[address].ranks[0], (source, held_as))

    def _send(self, request: Running, address: str, rank: SimulatedRank, source: tuple[VirtualPod, str] | None) -> None:
        drawn, now = request.drawn, self.loop.time()
        request.placed_s = request.placed_s or now
        request.pod, request.first_s = address, None
        sent_s = now
        self._note_sent(request, address)
        sequence = self._sequence(request)
        if source is not None:
            sequence = replace(sequence, remote_tokens=sequence.prompt_tokens)
        if drawn.is_constrained:
            rank.constrained += 1
        self._set_pace(rank)

        def reach(milestone: Milestone) -> None:
            if milestone.kind is MilestoneKind.FIRST_TOKEN:
                self._note_first_token(request)
                return
            if drawn.is_constrained:
                rank.constrained -= 1
            self.loop.call_soon(self._set_pace, rank)
            if milestone.reason == LOST:
                self._retry(request)
            else:
                self._finish(request, milestone, sent_s)

        def submit() -> None:
            try:
                rank.submit(sequence, reach, source)
            except (ConnectionError, ValueError):
                rank.constrained -= drawn.is_constrained
                self._retry(request)

        self._reach(address, rank, submit)
        if source is not None:
            self.loop.call_later(STALLED_S, self._give_up, request, request.attempts, rank, sequence)

    def _give_up(self, request: Running, attempt: int, rank: SimulatedRank, sequence: Sequence) -> None:
        """Let the decode pod compute the prompt itself where its KV has not come in time."""
        if request.first_s is not None or request.attempts != attempt or not rank.pod.has(sequence.sequence_id):
            return
        self._note_pair(request, is_lost=True)
        request.prefilled_s = None
        rank.abort(sequence.sequence_id)
        request.attempts += 1
        self._send(request, request.pod, rank, None)

    def _note_pair(self, request: Running, *, is_lost: bool) -> None:
        for address in (request.pod, request.prefilled_by):
            self.views[address].pairs.append((self.loop.time(), is_lost))

    def _reach(self, address: str, rank: SimulatedRank, submit: Callable[[], None]) -> None:
        """Submit at once, after the way to the pod, or when the pod's process goes on."""
        pod = self.pods[address]
        waiting = pod.waiting
        if waiting is None and not pod.plan.reach_s:
            submit()
            return
        rank.outstanding += 1

        def submit_late() -> None:
            rank.outstanding -= 1
            submit()

        if waiting is None:
            self.loop.call_later(pod.plan.reach_s, submit_late)
        else:
            waiting.append(submit_late)

    def _set_pace(self, rank: SimulatedRank) -> None:
        """Drafts of constrained requests are mostly rejected: the engine accepts the mean over its batch."""
        profile = rank.engine.profile
        if not profile.speculative_tokens or rank.pod.is_lost:
            return
        share = min(rank.constrained / rank.outstanding, 1.0) if rank.outstanding else 0.0
        pace = round(profile.acceptance_rate * (1 - share) + CONSTRAINED_ACCEPTANCE * share, 2)
        if abs(self._paces.get(rank, profile.acceptance_rate) - pace) >= 0.05:
            self._paces[rank] = pace
            rank.pod.accept_drafts(pace)

    def _retry(self, request: Running) -> None:
        if request.attempts >= MAX_ATTEMPTS:
            self.failed += 1
            return
        request.prefilled_s = None
        self.loop.call_later(0.5, self._place, request)

    def _note_sent(self, request: Running, address: str) -> None:
        view, now = self.views[address], self.loop.time()
        view.sent.append((now, request.drawn))
        held = view.blocks
        for block in request.drawn.blocks:
            held[block] = None
            held.move_to_end(block)
        while len(held) > self._capacities[address]:
            held.popitem(last=False)

    def _finish(self, request: Running, end: Milestone, sent_s: float) -> None:
        now, drawn = self.loop.time(), request.drawn
        self.answered += 1
        first_s = request.first_s if request.first_s is not None else now
        gap = (now - first_s) / (end.output_tokens - 1) if end.output_tokens > 1 else None
        cached = end.cached_tokens if drawn.pool != "split" else 0
        plan = self.pods[request.pod].plan
        self._note_end(request, Ended(now, drawn, request.predicted, cached, first_s, first_s - sent_s, gap))
        key = TrafficKey(
            drawn.pool, drawn.pool, plan.role, RequestClass.CONSTRAINED if drawn.is_constrained else RequestClass.PLAIN
        )
        moments = RequestMoments(
            arrived_s=request.arrived_s,
            sent_s=request.placed_s,
            ended_s=now,
            first_token_s=first_s,
            queue_s=self.queue_means.get(request.pod),
            prefilled_s=request.prefilled_s,
        )
        cold = drawn.prompt_tokens - cached
        self._times.observe(key, split(moments), drawn.prompt_tokens, cold, end.output_tokens)

    def _note_first_token(self, request: Running) -> None:
        request.first_s = self.loop.time()
        if request.prefilled_s is not None:
            self._note_pair(request, is_lost=False)
            self.views[request.prefilled_by].handovers.append((request.first_s, request.first_s - request.prefilled_s))

    def _note_end(self, request: Running, ended: Ended) -> None:
        self.views[request.pod].ended.append(ended)

    # --- Changes ------------------------------------------------------------------------------------------------------

    def restart(self, plan: PodPlan) -> None:
        """Replace a pod by one of another plan: its engines die, and requests go to others."""
        if plan.address in self.pods:
            self.pods[plan.address].unpause()
            self.remove(plan.address)
        self.pods[plan.address] = start_pod(plan, self.loop, self.loop.time())
        self.views[plan.address].blocks.clear()

    def remove(self, address: str) -> PodPlan:
        """Take a pod away, and return its plan; `restart` brings it back."""
        pod = self.pods.pop(address)
        pod.unpause()
        for rank in pod.ranks:
            rank.pod.lose()
            self._paces.pop(rank, None)
        return pod.plan

    def declare(self, plan: PodPlan) -> None:
        """Change what a pod declares, and nothing of how it works."""
        self.pods[plan.address].plan = plan
