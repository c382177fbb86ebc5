"""How many engines of one kind a mixture of tiers needs, and what each tier misses on a given number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, sqrt

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

MAX_ENGINES = 100_000.0

PRECISION = 0.005
"""Relative error of a requirement."""


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
        return not self.objective.is_best_effort and (self.work.prefill_tokens > 0 or self.work.output_tokens > 0)


def missed_by_tier(needs: Sequence[TierNeed], speed: EngineSpeed, role: Role, engines: float) -> list[float]:
    """Return each tier's share of misses on `engines` engines, in the order of `needs`, averaged over the scenarios."""
    shares = [0.0] * len(needs)
    weights = [0.0] * len(needs)
    has_spread = any(need.spread > 0 for need in needs)
    for z in SCENARIOS if has_spread else (0.0,):
        works = [need.work.scaled(exp(z * need.spread)) if has_spread else need.work for need in needs]
        for at, missed in enumerate(_missed(needs, works, speed, role, engines)):
            weight = works[at].requests or 1e-12
            shares[at] += weight * missed
            weights[at] += weight
    return [share / weight if weight else 0.0 for share, weight in zip(shares, weights, strict=True)]


def engines_needed(needs: Sequence[TierNeed], speed: EngineSpeed, role: Role) -> float:
    """Return the fewest engines, a real number, on which each tier keeps its objective with its probability."""
    counted = [need for need in needs if need.counts]
    if not counted:
        return 0.0
    low, high = 0.0, max(_fluid_engines(counted, speed, role), 0.01)
    while not _keeps(counted, speed, role, high):
        low, high = high, high * 1.5
        if high > MAX_ENGINES:
            return MAX_ENGINES
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        if _keeps(counted, speed, role, middle):
            high = middle
        else:
            low = middle
    return high


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
    return max(min((need.objective.tpot_s for need in needs if need.counts), default=inf), alone_s)


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


def _keeps(needs: Sequence[TierNeed], speed: EngineSpeed, role: Role, engines: float) -> bool:
    return all(
        missed <= 1 - need.objective.probability
        for need, missed in zip(needs, missed_by_tier(needs, speed, role, engines), strict=True)
    )


def _fluid_engines(needs: Sequence[TierNeed], speed: EngineSpeed, role: Role) -> float:
    prefill = sum(need.work.prefill_tokens for need in needs) / speed.prefill_tokens_per_s
    output = sum(need.work.output_tokens for need in needs)
    decode = decode_share(output, speed, _context(needs), inf)
    return {Role.PREFILL: prefill, Role.DECODE: decode}.get(role, prefill + decode)


def _context(needs: Sequence[TierNeed]) -> float:
    output = sum(need.work.output_tokens for need in needs)
    if not output:
        return max((need.context_tokens for need in needs), default=1.0)
    return sum(need.context_tokens * need.work.output_tokens for need in needs) / output


def _missed(
    needs: Sequence[TierNeed], works: Sequence[OfferedWork], speed: EngineSpeed, role: Role, engines: float
) -> list[float]:
    if role is Role.DECODE:
        return _missed_decode(needs, works, speed, engines)
    decoding = 0.0
    if role is Role.EITHER:
        output = sum(work.output_tokens for need, work in zip(needs, works, strict=True) if need.counts)
        decoding = decode_share(output / engines, speed, _context(needs), token_pace_s(needs, speed))
    free = engines * max(1 - decoding, MIN_SHARE)
    return [
        _missed_prefill(need, own, group, above, free, speed)
        for need, own, group, above in _by_priority(needs, [work.prefill_tokens for work in works])
    ]


def _missed_prefill(need: TierNeed, own: float, group: float, above: float, free: float, speed: EngineSpeed) -> float:
    """Return the misses of a tier on `free` engines' worth of time, behind the tokens of the tiers above it."""
    if own <= 0:
        return 0.0
    left = max(free - above / speed.prefill_tokens_per_s, MIN_SHARE * free)
    service_s = need.work.prefill_tokens / max(need.work.requests, 1e-9) / speed.prefill_tokens_per_s
    slack_s = need.objective.ttft_s + (need.objective.ttft_uncached_factor - 1) * service_s
    slack_s = UNBOUND_SLACK_S if slack_s == inf else max(slack_s, service_s / 2)
    scv = (need.arrival_scv + need.prefill_scv) / 2
    return missed_share(group / speed.prefill_tokens_per_s / left, left, service_s, slack_s, scv)


def _missed_decode(
    needs: Sequence[TierNeed], works: Sequence[OfferedWork], speed: EngineSpeed, engines: float
) -> list[float]:
    context, pace_s = _context(needs), token_pace_s(needs, speed)
    bound = decode_batch(inf, speed, context, pace_s)
    if pace_s < inf:
        each_s = max(speed.step_s(1, context) - speed.step_base_s, 1e-12)
        bound = min(bound, max((pace_s - speed.step_base_s) / each_s, MIN_SHARE))
    pace_s = min(pace_s, speed.step_s(bound, context))
    sequences = [work.output_tokens * pace_s for work in works]
    return [
        overflow_share(group, max(engines * bound - above, MIN_SHARE * engines * bound), need.arrival_scv)
        if own > 0
        else 0.0
        for need, own, group, above in _by_priority(needs, sequences)
    ]


def _by_priority(needs: Sequence[TierNeed], works: Sequence[float]) -> list[tuple[TierNeed, float, float, float]]:
    """Return for each tier its own work, that of its priority together, and that of all higher priorities."""
    found = []
    for need, own in zip(needs, works, strict=True):
        level = need.objective.priority
        group = above = 0.0
        for other, work in zip(needs, works, strict=True):
            if other.counts or other is need:
                if other.objective.priority > level:
                    above += work
                elif other.objective.priority == level:
                    group += work
        found.append((need, own, group, above))
    return found


def spread_of_counts(requests: float, scv: float) -> float:
    """Return the relative standard deviation of work that is measured on this many requests."""
    return sqrt((1 + scv) / requests) if requests > 0 else 1.0
