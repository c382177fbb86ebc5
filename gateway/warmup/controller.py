"""Warms new pods before they take load: holds them back, has one gateway replay hot prefixes to each, lets them go.

The watcher calls for each pod that becomes ready. Every gateway holds it back; the one that owns it, by its URL,
replays; the others follow what it publishes. Without peers the only gateway owns all pods. Whatever happens, a pod is
let go when its time is over. `supply/warmup.py` decides what is replayed, by which gateway, and when that ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.config.pools import PoolEntry
from gateway.runtime.event_log import LogFunction
from gateway.runtime.guard import call_guarded, report_exception, restarted
from gateway.warmup.messages import WarmupFigures, decode, encode
from gateway.warmup.prompt_store import KeptPrompt, PromptStore
from gateway.warmup.replay import ReplayEnd, ReplayReport, Send
from routing.decision.replayed_prompt import ReplayedPrompt
from routing.decision.router import Router
from routing.facts import Role
from routing.pods import Engine, Pod, PodState
from routing.request import Request
from routing.state import UNKNOWN_KV_TOKENS
from supply.policy import ControlMode, SupplyPolicy
from supply.warmup import (
    ReplayOption,
    SkipReason,
    StopReason,
    WarmupBudget,
    WarmupPlan,
    WarmupTarget,
    owner_of,
    plan_replays,
    slots_of,
    stop_reason,
)

TICK_S = 0.25

PUBLISH_S = 1.0
"""Between two messages to peers while nothing changes."""

FRESH_S = 4.0
"""A gateway whose last message is older warms no pods any more."""

SETTLE_S = 1.5
"""With peers: from a pod's readiness to the first replay, so that all agree who owns it."""

CLAIM_S = 5.0
"""A pod that no gateway has claimed so long is let go."""

FOLLOW_S = 2.0
"""How much longer than its time a pod is held for another gateway."""

DONE_S = 30.0
"""How long it is published that a pod is done: peers may notice it later."""

MAX_HELD = 256
"""Pods that are held back at once; further ones take load at once."""

LOOP = "warm-up"
"""The name under which exceptions are reported."""


def budget_of(policy: SupplyPolicy) -> WarmupBudget:
    """Return the budget of the configured keys."""
    return WarmupBudget(
        policy.prewarm_max_s, policy.prewarm_max_tokens, policy.prewarm_max_pods, policy.prewarm_kv_share
    )


@dataclass(slots=True)
class WarmupCounters:
    """Sums since the start of this gateway."""

    replays: int = 0
    tokens: int = 0
    """Prompt tokens of replays, as engines count them."""
    cached_tokens: int = 0
    """Of them, those that the engine had cached already."""
    seconds: float = 0.0
    """From ready to taking load, of pods that this gateway has warmed."""
    ends: Counter[StopReason] = field(default_factory=Counter)
    skipped: Counter[SkipReason] = field(default_factory=Counter)
    advised: int = 0
    """Pods that would have been warmed."""
    advised_tokens: float = 0.0


@dataclass(slots=True)
class HeldPod:
    """One pod that is held back."""

    url: str
    since_s: float
    is_claimed: bool = False
    """By this gateway."""
    claimed_by: int | None = None
    """The peer that has claimed it."""
    task: asyncio.Task[None] | None = None
    failures: int = 0
    replays: int = 0
    tokens: int = 0
    skipped: Counter[SkipReason] = field(default_factory=Counter)


@dataclass(slots=True)
class _Peer:
    figures: WarmupFigures
    received_s: float


class WarmupController:
    """One per gateway process whose configuration has `prewarm`."""

    def __init__(
        self,
        policy: SupplyPolicy,
        router: Router,
        prompts: PromptStore,
        send: Send,
        *,
        end_warmup: Callable[[str], object],
        pools: Callable[[], Mapping[str, PoolEntry]],
        wait_share: Callable[[], float],
        clock: Callable[[], float],
        log_event: LogFunction,
    ) -> None:
        """`end_warmup`: lets a pod take load; `wait_share`: the largest share of its bound that a request has waited;
        `pools`: the section `pools` by name.
        """
        self.mode = policy.prewarm
        self.budget = budget_of(policy)
        self.prompts = prompts
        self.counters = WarmupCounters()
        self.held: dict[str, HeldPod] = {}
        self.own_id: Callable[[], int] = lambda: 0
        self._publish: Callable[[bytes], object] | None = None
        self._router = router
        self._send = send
        self._end_warmup = end_warmup
        self._pools = pools
        self._wait_share = wait_share
        self._clock = clock
        self._log_event = log_event
        self._peers: dict[int, _Peer] = {}
        self._done: dict[str, float] = {}
        self._published_s = float("-inf")
        self._last_published: WarmupFigures | None = None
        self._is_leaving = False
        self._number = 0
        self._wake = asyncio.Event()

    def __repr__(self) -> str:
        return f"<WarmupController {self.mode}, {len(self.held)} held, {len(self.prompts)} prompts>"

    def share(self, publish: Callable[[bytes], object], own_id: Callable[[], int]) -> None:
        """Exchange with the other gateways: `publish` sends them a message, `own_id` is this gateway's id there."""
        self._publish, self.own_id = publish, own_id

    def leave(self) -> None:
        """Tell peers that this gateway drains: others take its pods from now on."""
        self._is_leaving = True
        self._publish_now(self._clock())

    def take(self, replica_id: int, payload: bytes, now_s: float) -> None:
        """Take a message of a peer; other messages are ignored. Raises nothing."""
        call_guarded(LOOP, self._take, replica_id, payload, now_s)

    def should_warm(self, pod: Pod) -> bool:
        """Return whether a pod that has just become ready is held back, and begin its warm-up."""
        now_s = self._clock()
        if not _engines(pod) or self._others(pod) == 0 or pod.url in self.held or len(self.held) >= MAX_HELD:
            return False
        if self.mode is not ControlMode.ACT:
            self._advise(pod)
            return False
        peers = self._fresh_peers(now_s)
        if any(pod.url in peer.figures.done for peer in peers.values()):
            return False
        may_own = any(peer.figures.has_prompts for peer in peers.values())
        if not may_own and not any(self._plan(engine, pod).replays for engine in _engines(pod)):
            return False
        self._done.pop(pod.url, None)
        self.held[pod.url] = HeldPod(pod.url, now_s)
        self._wake.set()
        return True

    @restarted(LOOP)
    async def run(self) -> None:
        """Look every quarter of a second, or when a pod is to be warmed, until cancelled."""
        try:
            while True:
                self.tick()
                self._wake.clear()
                try:
                    async with asyncio.timeout(TICK_S if self.held else PUBLISH_S):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            for held in list(self.held.values()):
                self._let_go(held)

    def tick(self) -> None:
        """Begin, follow and end what is due."""
        now_s = self._clock()
        self.prompts.kept()  # Forgets what is too old.
        peers = self._fresh_peers(now_s)
        owners = {
            replica_id for replica_id, peer in peers.items() if peer.figures.has_prompts and not peer.figures.is_leaving
        }
        if len(self.prompts) and not self._is_leaving:
            owners.add(self.own_id())
        wait_share = self._wait_share() if self.held else 0.0
        for held in list(self.held.values()):
            self._look_at(held, peers, owners, wait_share, now_s)
        self._done = {url: at_s for url, at_s in self._done.items() if now_s - at_s < DONE_S}
        figures = self._figures()
        if figures != self._last_published or now_s - self._published_s >= PUBLISH_S:
            self._publish_now(now_s)

    # -- one pod -------------------------------------------------------------------------------------------------------

    def _look_at(
        self, held: HeldPod, peers: Mapping[int, _Peer], owners: set[int], wait_share: float, now_s: float
    ) -> None:
        if (reason := self._stop_reason(held, wait_share, now_s)) is not None:
            self._end(held, reason)
            return
        others = {replica_id for replica_id, peer in peers.items() if held.url in peer.figures.claimed}
        is_ours = owner_of(held.url, owners, self.budget.max_pods) == self.own_id()
        if others and not (held.is_claimed and is_ours):
            self._cancel(held)
            held.is_claimed, held.claimed_by = False, min(others)
            return
        if held.is_claimed:
            self._begin(held, bool(peers), owners, now_s)
        elif any(held.url in peer.figures.done for peer in peers.values()):
            self._end(held, StopReason.DONE)
        elif held.claimed_by is not None and not is_ours:
            self._end(held, StopReason.UNCLAIMED)
        elif is_ours:
            held.is_claimed, held.claimed_by = True, None
            self._begin(held, bool(peers), owners, now_s)
        elif now_s - held.since_s >= CLAIM_S:
            self._end(held, StopReason.UNCLAIMED)

    def _stop_reason(self, held: HeldPod, wait_share: float, now_s: float) -> StopReason | None:
        pod = self._router.fleet.pod(held.url)
        waited_s = now_s - held.since_s
        return stop_reason(
            self.budget,
            spent_s=waited_s if held.is_claimed else waited_s - FOLLOW_S,
            failures=held.failures,
            is_ready=pod is not None and pod.state is PodState.WARMING,
            others=0 if pod is None else self._others(pod),
            wait_share=wait_share,
        )

    def _begin(self, held: HeldPod, has_peers: bool, owners: set[int], now_s: float) -> None:  # noqa: FBT001 - one caller
        """Begin the replays of a pod that this gateway owns, if it may warm one more now."""
        if held.task is not None or (has_peers and now_s - held.since_s < SETTLE_S):
            return
        under_way = sum(each.task is not None for each in self.held.values())
        if under_way < max(1, slots_of(self.own_id(), owners, self.budget.max_pods)):
            held.task = asyncio.get_running_loop().create_task(self._warm(held), name=f"warm {held.url}")

    async def _warm(self, held: HeldPod) -> None:
        """Replay what is planned to all engines of a pod, then let it go."""
        try:
            pod = self._router.fleet.pod(held.url)
            async with asyncio.TaskGroup() as group:
                for engine in _engines(pod) if pod is not None else ():
                    group.create_task(self._warm_engine(held, engine, pod))
        except Exception as error:  # noqa: BLE001 - whatever fails, the pod is let go
            report_exception(LOOP, error)
            self._end(held, StopReason.FAILED)
            return
        self._end(held, self._stop_reason(held, self._wait_share(), self._clock()) or StopReason.DONE)

    async def _warm_engine(self, held: HeldPod, engine: Engine, pod: Pod | None) -> None:
        if pod is None:
            return
        plan = self._plan(engine, pod)
        held.skipped.update(plan.skipped)
        kept = {each.key: each for each in self.prompts.kept()}
        left = deque((option, kept[option.key]) for option in plan.replays if option.key in kept)
        while left and self._stop_reason(held, self._wait_share(), self._clock()) is None:
            option, prompt = left.popleft()
            if not await self._replay(held, engine, prompt, option):
                # The prompt may be at fault: those of other tenants show whether the pod is.
                left = deque(sorted(left, key=lambda each: each[1].tenant == prompt.tenant))

    async def _replay(self, held: HeldPod, engine: Engine, prompt: KeptPrompt, option: ReplayOption) -> bool:
        """Replay one prompt; the engine is charged meanwhile, here and at peers. Returns whether it did not fail."""
        self._number += 1
        request = Request(
            f"warmup-{self.own_id():016x}-{self._number}", prompt.api, prompt.model, option.prompt, max_tokens=1
        )
        left_s = self.budget.max_s - (self._clock() - held.since_s)
        charged = ReplayedPrompt(
            self._router, request, engine, max(0.0, option.tokens - option.held_tokens), self._clock()
        )
        result = ReplayReport(ReplayEnd.FAILED)
        try:
            result = await self._send(engine, prompt, request.id, left_s)
        finally:
            charged.end(self._clock(), is_computed=result.end is ReplayEnd.COMPUTED)
        if result.end is ReplayEnd.FAILED:
            held.failures += 1
            return False
        held.failures = 0
        if result.end is ReplayEnd.REJECTED:
            self.prompts.remove(prompt.key)
            return True
        held.replays += 1
        held.tokens += result.usage.prompt_tokens
        self.counters.replays += 1
        self.counters.tokens += result.usage.prompt_tokens
        self.counters.cached_tokens += result.usage.cached_tokens or 0
        return True

    def _end(self, held: HeldPod, reason: StopReason) -> None:
        """Let a pod take load, and log what was done for it by this gateway."""
        if self.held.get(held.url) is not held:
            return
        now_s = self._clock()
        if held.is_claimed:
            self._done[held.url] = now_s
            counters = self.counters
            counters.ends[reason] += 1
            counters.seconds += now_s - held.since_s
            counters.skipped.update(held.skipped)
            self._log_event(
                "info",
                "pod_warmed",
                upstream=held.url,
                reason=reason.value,
                replays=held.replays,
                prompt_tokens=held.tokens,
                seconds=round(now_s - held.since_s, 3),
                skipped={each.value: count for each, count in sorted(held.skipped.items())},
            )
        self._let_go(held)
        self._wake.set()

    def _let_go(self, held: HeldPod) -> None:
        del self.held[held.url]
        self._cancel(held)
        self._end_warmup(held.url)

    @staticmethod
    def _cancel(held: HeldPod) -> None:
        task, held.task = held.task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    # -- plans ---------------------------------------------------------------------------------------------------------

    def _advise(self, pod: Pod) -> None:
        plans = [self._plan(engine, pod) for engine in _engines(pod)]
        replays = sum(len(plan.replays) for plan in plans)
        tokens = sum(plan.tokens for plan in plans)
        skipped: Counter[SkipReason] = Counter()
        for plan in plans:
            skipped.update(plan.skipped)
        self.counters.advised += 1
        self.counters.advised_tokens += tokens
        self._log_event(
            "info",
            "warmup_advised",
            upstream=pod.url,
            replays=replays,
            prompt_tokens=round(tokens),
            skipped={each.value: count for each, count in sorted(skipped.items())},
        )

    def _plan(self, engine: Engine, pod: Pod) -> WarmupPlan:
        router, now_s, slot = self._router, self._clock(), engine.slot
        options = [self._option(each, slot, now_s) for each in self.prompts.kept() if each.model in pod.models]
        others = len(self.prompts) - len(options)
        target = WarmupTarget(
            models=pod.models,
            region=pod.region,
            is_higher_rank=self._is_higher_rank(pod),
            kv_tokens=engine.kv_tokens or UNKNOWN_KV_TOKENS,
            used_kv_tokens=router.ledger.all_kv_tokens[slot],
        )
        plan = plan_replays(options, target, self.budget)
        if not others:
            return plan
        return WarmupPlan(plan.replays, plan.tokens, {**plan.skipped, SkipReason.MODEL: others})

    def _option(self, kept: KeptPrompt, slot: int, now_s: float) -> ReplayOption:
        router, prompt = self._router, kept.prompt
        per_token = router.counters[kept.model].size_per_token
        held = sum(size for _, size in router.index.match(prompt, 1 << slot))
        return ReplayOption(
            kept.key,
            kept.model,
            prompt,
            prompt.size / per_token,
            self.prompts.prefixes.uses_of(kept.key, now_s),
            kept.terms,
            held / per_token,
        )

    def _others(self, pod: Pod) -> int:
        """Return how many other pods are ready to compute the prompts that a pod could: for its base models, in its
        region, of the fleet itself.
        """
        models = pod.models - pod.adapters
        return sum(
            other.state is PodState.READY
            and other.url != pod.url
            and models <= other.models
            and pod.region in (None, other.region)
            and other.provider is None
            and bool(_engines(other))
            for other in self._router.fleet.pods
        )

    def _is_higher_rank(self, pod: Pod) -> bool:
        """Return whether a pod's rank is above the lowest of its models' pods and pools."""
        pools = self._pools()
        ranks = [self._rank(other, pools) for other in self._router.fleet.pods if pod.models & other.models]
        ranks += [entry.rank for entry in pools.values() if entry.model is None or entry.model in pod.models]
        return self._rank(pod, pools) > min(ranks, default=0)

    @staticmethod
    def _rank(pod: Pod, pools: Mapping[str, PoolEntry]) -> int:
        if pod.facts.spill_rank is not None:
            return pod.facts.spill_rank
        entry = pools.get(pod.pool_label)
        return entry.rank if entry is not None else 0

    # -- other gateways ------------------------------------------------------------------------------------------------

    def _take(self, replica_id: int, payload: bytes, now_s: float) -> None:
        figures = decode(payload)
        if figures is None:
            return
        self._peers[replica_id] = _Peer(figures, now_s)
        if any(url in self.held for url in (*figures.claimed, *figures.done)):
            self._wake.set()

    def _fresh_peers(self, now_s: float) -> Mapping[int, _Peer]:
        self._peers = {key: peer for key, peer in self._peers.items() if now_s - peer.received_s < FRESH_S}
        return self._peers

    def _figures(self) -> WarmupFigures:
        claimed = sorted(each.url for each in self.held.values() if each.is_claimed)
        return WarmupFigures(
            tuple(claimed), tuple(sorted(self._done)), self._is_leaving, has_prompts=len(self.prompts) > 0
        )

    def _publish_now(self, now_s: float) -> None:
        figures = self._figures()
        self._last_published, self._published_s = figures, now_s
        if self._publish is not None and self.mode is ControlMode.ACT:
            self._publish(encode(figures))


def _engines(pod: Pod) -> tuple[Engine, ...]:
    """Return the engines of a pod that compute prompts."""
    return tuple(engine for engine in pod.engines if engine.role is not Role.DECODE)
