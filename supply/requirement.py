"""How many engines of one kind a mixture of tiers needs, and what each tier misses on a given number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, sqrt

from routing.facts import Role
from supply.load import EngineSpeed, OfferedWork, TierObjective
from supply.queueing import MIN_SHARE, missed_share, overflow_share

SCENARIOS = (-1.28, -0.52, 0.0, 0.52, 1.28)
"""Medians of the fifths of a normal distribution: how far the demand may be off, in standard deviations."""

UNBOUND_SLACK_S = 30.0
"""Wait that a tier without an objective is held to, so that its queue does not grow."""

KV_USE = 0.9
"""Share of the KV cache that running sequences may fill on average."""

UNATTAINABLE_MARGIN = 1.1
PACE_USE = 0.95
"""Share of the TPOT that is planned with: streams differ from their mean."""

MAX_ENGINES = 100_000.0

PRECISION = 0.005
"""Relative error of a requirement."""
MIN_TOKENS = 1e-9
"""Tokens per second that count as work."""
MIN_COUNT = 1e-3
"""Requests of a window below which their number says no less: squares of what follows from it stay finite."""
MIN_STEP = 1e-4
"""Its absolute error, in engines: next to no work needs next to none."""


@dataclass(frozen=True, slots=True)
class TierNeed:
    """What one tier offers in a while, and how certain that is. The input of the estimate."""

    objective: TierObjective
    work: OfferedWork
    """Per second, factors for what was learned included."""
    spread: float = 0.0
    """Standard deviation of the logarithm of actual over expected work."""
    context_tokens: float = 2_000.0
    arrival_scv: float = 1.0
    prefill_scv: float = 1.0

    @property
    def counts(self) -> bool:
        """Whether engines are added for it."""
        tokens = max(self.work.prefill_tokens, self.work.output_tokens)
        return not self.objective.is_best_effort and tokens > MIN_TOKENS


def missed_by_tier(needs: Sequence[TierNeed], speed: EngineSpeed, role: Role, engines: float) -> list[float]:
    """Return each tier's share of misses on `engines` engines, in the order of `needs`, averaged over the scenarios."""
    return _Estimate(needs, speed, role).missed(engines)


def engines_needed(needs: Sequence[TierNeed], speed: EngineSpeed, role: Role) -> float:
    """Return the fewest engines, a real number, on which each tier keeps its objective with its probability.

    Raises `ValueError` for work or a spread that is no finite number: no search for engines would end.
    """
    counted = [need for need in needs if need.counts]
    if not counted:
        return 0.0
    estimate = _Estimate(counted, speed, role)
    bounds = [1 - need.objective.probability for need in counted]
    low, high = 0.0, max(estimate.fluid_engines, 0.01)
    if not isfinite(high):
        raise ValueError("the offered work, or how certain it is, is no finite number")
    while not _keeps(estimate, bounds, high):
        low, high = high, high * 1.5
        if high > MAX_ENGINES:
            return MAX_ENGINES
    while high - low > max(PRECISION * high, MIN_STEP):
        middle = (low + high) / 2
        if _keeps(estimate, bounds, middle):
            high = middle
        else:
            low = middle
    return high


def _keeps(estimate: _Estimate, bounds: Sequence[float], engines: float) -> bool:
    return all(missed <= bound for missed, bound in zip(estimate.missed(engines), bounds, strict=True))


def needs_by_tier(needs: Sequence[TierNeed], speed: EngineSpeed, role: Role) -> dict[str, float]:
    """Return the engines that each tier adds to those of higher priorities; they sum up to the requirement."""
    parts: dict[str, float] = {}
    counted: list[TierNeed] = []
    below = 0.0
    for need in sorted(needs, key=lambda need: (-need.objective.priority, need.objective.name)):
        counted.append(need)
        needed = max(engines_needed(counted, speed, role), below)
        parts[need.objective.name] = parts.get(need.objective.name, 0.0) + needed - below
        below = needed
    return parts


def token_pace_s(needs: Sequence[TierNeed], speed: EngineSpeed) -> float:
    """Return the strictest TPOT of the tiers that count: streams of all tiers share the steps of an engine.

    An objective below what one sequence alone gets cannot be kept by more engines; it counts as slightly above that.
    """
    alone_s = UNATTAINABLE_MARGIN * speed.step_s(1, _context(needs))
    return max(PACE_USE * min((need.objective.tpot_s for need in needs if need.counts), default=inf), alone_s)


def decode_batch(output_tokens_per_s: float, speed: EngineSpeed, context_tokens: float, pace_s: float) -> float:
    """Return the sequences of one engine that makes this many tokens a second at `pace_s` each, by Little's law.

    KV room and `max_sequences` bound it: beyond them an engine has to step faster for the same tokens.
    """
    bound = min(float(speed.max_sequences), KV_USE * speed.kv_capacity_tokens / max(context_tokens, 1.0))
    return min(output_tokens_per_s * pace_s, max(bound, 1.0)) if pace_s < inf else max(bound, 1.0)


def decode_share(output_tokens_per_s: float, speed: EngineSpeed, context_tokens: float, pace_s: float) -> float:
    """Return the share of an engine's time that decoding takes; above 1 where it cannot keep up."""
    if output_tokens_per_s <= 0:
        return 0.0
    batch = max(decode_batch(output_tokens_per_s, speed, context_tokens, pace_s), 1.0)
    return output_tokens_per_s / batch * speed.step_s(batch, context_tokens)


def _context(needs: Sequence[TierNeed]) -> float:
    output = sum(need.work.output_tokens for need in needs)
    if not output:
        return max((need.context_tokens for need in needs), default=1.0)
    return sum(need.context_tokens * need.work.output_tokens for need in needs) / output


@dataclass(frozen=True, slots=True)
class _Share:
    """One tier in one scenario: its weight, the load of its priority and of all above, and what makes it wait."""

    at: int
    weight: float
    group: float
    above: float
    service_s: float
    slack_s: float
    scv: float


class _Estimate:
    """The misses of tiers as a function of engines; what does not depend on their number is computed once.

    Loads are in engines: prefill seconds per second, for decode pools sequences over the bound of one engine.
    """

    def __init__(self, needs: Sequence[TierNeed], speed: EngineSpeed, role: Role) -> None:
        self._count = len(needs)
        self._speed = speed
        self._role = role
        self._context = _context(needs)
        self._pace_s = token_pace_s(needs, speed)
        self._bound = self._batch_bound()
        has_spread = any(need.spread > 0 for need in needs)
        self._scenarios = [self._scenario(needs, z) for z in (SCENARIOS if has_spread else (0.0,))]
        self._weights = [
            sum(share.weight for _, shares in self._scenarios for share in shares if share.at == at) or 1.0
            for at in range(self._count)
        ]

    @property
    def fluid_engines(self) -> float:
        """Return the engines below which not even the mean work is carried."""
        output, shares = self._scenarios[len(self._scenarios) // 2]
        prefill = max((share.group + share.above for share in shares), default=0.0)
        if self._role is not Role.EITHER:
            return prefill
        return prefill + decode_share(output, self._speed, self._context, inf)

    def missed(self, engines: float) -> list[float]:
        """Return the share of misses by tier."""
        missed = [0.0] * self._count
        is_decode = self._role is Role.DECODE
        for output, shares in self._scenarios:
            free = engines
            if self._role is Role.EITHER and output:
                decoding = decode_share(output / engines, self._speed, self._context, self._pace_s)
                free = engines * max(1 - decoding, MIN_SHARE)
            for share in shares:
                left = max(free - share.above, MIN_SHARE * free)
                if is_decode:
                    part = overflow_share(share.group * self._bound, left * self._bound, share.scv)
                else:
                    part = missed_share(share.group / left, left, share.service_s, share.slack_s, share.scv)
                missed[share.at] += share.weight * part
        return [share / weight for share, weight in zip(missed, self._weights, strict=True)]

    def _batch_bound(self) -> float:
        """Return the sequences that one decode engine may have, by KV room, `max_sequences` and the TPOT."""
        bound = decode_batch(inf, self._speed, self._context, self._pace_s)
        if self._pace_s < inf:
            each_s = max(self._speed.step_s(1, self._context) - self._speed.step_base_s, 1e-12)
            bound = min(bound, (self._pace_s - self._speed.step_base_s) / each_s)
        return max(bound, 1.0)

    def _scenario(self, needs: Sequence[TierNeed], z: float) -> tuple[float, list[_Share]]:
        works = [need.work.scaled(exp(z * need.spread)) if need.spread else need.work for need in needs]
        loads = [self._load(work) for work in works]
        shares = []
        for at, (need, work, load) in enumerate(zip(needs, works, loads, strict=True)):
            if load <= 0:
                continue
            level = need.objective.priority
            others = [
                (other.objective.priority, amount)
                for other, amount in zip(needs, loads, strict=True)
                if other.counts or other is need
            ]
            group = sum(amount for priority, amount in others if priority == level)
            above = sum(amount for priority, amount in others if priority > level)
            shares.append(_Share(at, work.requests or 1e-9, group, above, *self._waiting(need)))
        output = sum(work.output_tokens for need, work in zip(needs, works, strict=True) if need.counts)
        return output, shares

    def _load(self, work: OfferedWork) -> float:
        if self._role is Role.DECODE:
            pace_s = min(self._pace_s, self._speed.step_s(self._bound, self._context))
            return work.output_tokens * pace_s / self._bound
        return work.prefill_tokens / self._speed.prefill_tokens_per_s

    def _waiting(self, need: TierNeed) -> tuple[float, float, float]:
        """Return service and slack in seconds, and the variability that enters the formula."""
        if self._role is Role.DECODE:
            return 0.0, 0.0, need.arrival_scv
        service_s = need.work.prefill_tokens / max(need.work.requests, 1e-9) / self._speed.prefill_tokens_per_s
        slack_s = need.objective.ttft_s + (need.objective.ttft_uncached_factor - 1) * service_s
        slack_s = UNBOUND_SLACK_S if slack_s == inf else max(slack_s, service_s / 2)
        return service_s, slack_s, (need.arrival_scv + need.prefill_scv) / 2


def spread_of_counts(requests: float, scv: float) -> float:
    """Return the relative standard deviation of work that is measured on this many requests."""
    return sqrt((1 + scv) / max(requests, MIN_COUNT)) if requests > 0 else 1.0
