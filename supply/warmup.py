"""Decides what is replayed to a new pod before it takes load, by which gateway, and when that ends. Pure.

A replay is a prompt of which the first tokens are hot; the engine computes it once and keeps its KV. Replays go in the
order of their uses, as far as budgets of tokens and of KV room reach. A prompt goes only to a pod where its tenant's
own requests may be computed; one of a higher rank than the lowest (a cloud behind an on-prem pool) gets only prompts of
tenants that have agreed to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b

from routing.blocks import Prompt

MIN_TOKENS = 64.0
"""A shorter prefix is computed faster than it is replayed."""


class SkipReason(StrEnum):
    """Why a hot prefix is not replayed to a pod."""

    MODEL = "model"
    """The pod does not serve its model."""
    REGION = "region"
    """The pod is in no region that its tenant allows."""
    RANK = "rank"
    """The pod belongs to a pool of higher rank, and the tenant has not set `prewarm: true`."""
    CACHED = "cached"
    """The engine has it cached."""
    TOKENS = "tokens"
    """The budget of tokens is spent on hotter ones."""
    KV_ROOM = "kv_room"
    """The share of the engine's KV blocks is spent on hotter ones."""
    TOO_SHORT = "too_short"
    """It is shorter than a replay is worth."""


class StopReason(StrEnum):
    """Why the warm-up of a pod ended."""

    DONE = "done"
    """All replays are sent."""
    TIME = "time"
    """`supply.prewarm_max_s` has passed."""
    OBJECTIVE = "objective"
    """Requests have waited too long for their objective: the pod is needed now."""
    ALONE = "alone"
    """No other pod serves its model in its region."""
    UNHEALTHY = "unhealthy"
    """The pod is not ready any more."""
    FAILED = "failed"
    """Two replays in a row failed."""
    UNCLAIMED = "unclaimed"
    """No gateway began the warm-up in time, or the one that began is gone."""


@dataclass(frozen=True, slots=True)
class WarmupBudget:
    """Bounds of warm-ups."""

    max_s: float = 30.0
    """Seconds of one pod, from ready to taking load."""
    max_tokens: float = 200_000.0
    """Prompt tokens replayed to one engine."""
    max_pods: int = 16
    """Pods that are warmed at once, by all gateways together."""
    kv_share: float = 0.5
    """Share of an engine's KV blocks that replays may fill: what clients bring then evicts nothing of them at once, and
    they evict nothing."""
    max_wait_share: float = 0.25
    """A request that has waited for this share of its tier's bound ends all warm-ups."""


@dataclass(frozen=True, slots=True)
class ReplayTerms:
    """Where a prompt may be computed, as its tenant has it."""

    regions: frozenset[str] | None = None
    """None: anywhere."""
    may_leave: bool = False
    """Whether copies may go to pools of higher rank."""


@dataclass(frozen=True, slots=True)
class ReplayOption:
    """A hot prefix that could be replayed."""

    key: int
    model: str
    prompt: Prompt
    """Up to the end of the prefix."""
    tokens: float
    uses: float
    terms: ReplayTerms = ReplayTerms()
    held_tokens: float = 0.0
    """Of it, tokens that the engine holds already."""


@dataclass(frozen=True, slots=True)
class WarmupTarget:
    """The engine that is warmed."""

    models: frozenset[str]
    region: str | None = None
    is_higher_rank: bool = False
    """Whether other pods of its model have a lower rank."""
    kv_tokens: float = 0.0
    used_kv_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class WarmupPlan:
    """The replays of one engine, the hottest first."""

    replays: tuple[ReplayOption, ...] = ()
    tokens: float = 0.0
    """That they have the engine compute."""
    skipped: Mapping[SkipReason, int] = field(default_factory=dict)


def plan_replays(options: Iterable[ReplayOption], target: WarmupTarget, budget: WarmupBudget) -> WarmupPlan:
    """Return what is replayed to an engine: the hottest prefixes within the budgets, each once.

    A prefix that a longer chosen one begins with is covered by it.
    """
    skipped: Counter[SkipReason] = Counter()
    chosen: list[ReplayOption] = []
    covered: dict[int, float] = {}
    """Tokens that are covered up to a block, by chosen prefixes."""
    room = max(0.0, budget.kv_share * target.kv_tokens - target.used_kv_tokens)
    spent = 0.0
    for option in sorted(options, key=lambda option: (-option.uses, option.tokens, option.key)):
        reason = _reason_to_skip(option, target)
        if reason is None:
            shared = max((covered[block] for block in option.prompt.blocks if block in covered), default=0.0)
            cost = option.tokens - max(shared, option.held_tokens)
            if spent + cost > budget.max_tokens:
                reason = SkipReason.TOKENS
            elif spent + cost > room:
                reason = SkipReason.KV_ROOM
            else:
                spent += cost
                chosen.append(option)
                covered[option.key] = option.tokens
        if reason is not None:
            skipped[reason] += 1
    return WarmupPlan(tuple(_outermost(chosen)), spent, dict(skipped))


def _reason_to_skip(option: ReplayOption, target: WarmupTarget) -> SkipReason | None:
    if option.model not in target.models:
        return SkipReason.MODEL
    terms = option.terms
    if terms.regions is not None and target.region not in terms.regions:
        return SkipReason.REGION
    if target.is_higher_rank and not terms.may_leave:
        return SkipReason.RANK
    if option.tokens < MIN_TOKENS:
        return SkipReason.TOO_SHORT
    return SkipReason.CACHED if option.held_tokens > option.tokens - MIN_TOKENS else None


def _outermost(chosen: Sequence[ReplayOption]) -> list[ReplayOption]:
    """Leave out those that a longer one begins with; that one takes the place of the hottest part of it."""
    outer: dict[int, ReplayOption] = {}
    """The longest option that has a block, by block: the end of a prefix is a block of all that begin with it."""
    for option in sorted(chosen, key=lambda option: option.prompt.covered):
        outer.update(dict.fromkeys(option.prompt.blocks, option))
    left = dict.fromkeys(outer[option.key].key for option in chosen)
    by_key = {option.key: option for option in chosen}
    return [by_key[key] for key in left]


def owner_of(url: str, gateways: Iterable[int], max_pods: int) -> int | None:
    """Return the gateway that replays to a pod, the same wherever the same gateways are known; None without any.

    Rendezvous hashing: when a gateway comes or goes only its own pods change hands. No more gateways own pods than
    pods may be warmed at once.
    """
    return max(sorted(gateways)[:max_pods], key=lambda gateway: _rank(gateway, url), default=None)


def slots_of(gateway: int, gateways: Iterable[int], max_pods: int) -> int:
    """Return how many pods a gateway may replay to at once: its part of what all may."""
    owners = sorted(gateways)[:max_pods]
    if gateway not in owners:
        return 0
    each, rest = divmod(max_pods, len(owners))
    return each + (owners.index(gateway) < rest)


def _rank(gateway: int, url: str) -> bytes:
    return blake2b(f"{gateway}\0{url}".encode(), digest_size=8).digest()


MAX_FAILURES = 2
"""Replays in a row that may fail."""


def stop_reason(
    budget: WarmupBudget, *, spent_s: float, failures: int, is_ready: bool, others: int, wait_share: float
) -> StopReason | None:
    """Return why a warm-up that is under way ends now; None where it goes on.

    `spent_s`: seconds since the pod was ready; `failures`: replays in a row that failed; `others`: other pods that are
    ready for its model; `wait_share`: the largest share of its bound that a request has waited.
    """
    if not is_ready:
        return StopReason.UNHEALTHY
    if others == 0:
        return StopReason.ALONE
    if wait_share >= budget.max_wait_share:
        return StopReason.OBJECTIVE
    if failures >= MAX_FAILURES:
        return StopReason.FAILED
    return StopReason.TIME if spent_s >= budget.max_s else None
