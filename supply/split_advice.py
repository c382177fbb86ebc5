"""Whether prefill and decode should have engines of their own: seconds of both from real traffic, against prices.

Seconds are engine time, not request time: each running sequence would count the same second of an engine again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil

from routing.facts import Role
from supply.load import EngineSpeed, TierLoad
from supply.requirement import TierNeed, decode_share, engines_needed, token_pace_s

MIN_SAVING = 0.1
"""Share of the money below which a split is not advised: the estimate is not more exact."""

MIN_ENGINES = 8
"""Engines below which a fleet is too small to be cut in two."""

HOUR_S = 3_600.0


class SplitVerdict(StrEnum):
    """What is advised, with its reason; stable codes."""

    SPLIT = "split"
    """Separate prefill and decode engines cost less."""
    TOO_SMALL = "too_small"
    """The pool has too few engines to split."""
    NO_GAIN = "no_gain"
    """A split would cost more, or save too little."""
    TRANSFER = "transfer"
    """A split would cost less without the time of the KV transfer."""
    NO_TRAFFIC = "no_traffic"
    """There is no traffic to judge by."""


@dataclass(frozen=True, slots=True)
class PricedEngine:
    """A kind of engine and its price per hour."""

    speed: EngineSpeed
    price_per_hour: float


@dataclass(frozen=True, slots=True)
class KvTransfer:
    """The hand-over of a prompt's KV."""

    kv_bytes_per_token: float = 32_768.0
    bytes_per_s: float = 10e9
    overhead_s: float = 0.01

    def seconds(self, tokens: float) -> float:
        """Return the seconds of the transfer of a prompt."""
        return self.overhead_s + tokens * self.kv_bytes_per_token / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class SplitAdvice:
    """The figures behind the verdict. Money is in the unit of the prices."""

    verdict: SplitVerdict
    prefill_s: float
    """Engine-seconds of prefill per second, on today's engines."""
    decode_s: float
    """The same of decode, in batches at the token pace of the strictest tier."""
    price_ratio: float
    """Price of a second of work on the decode kind over one on the prefill kind, both relative to today's engines."""
    colocated_engines: int
    prefill_engines: int
    decode_engines: int
    colocated_per_hour: float
    split_per_hour: float
    colocated_per_million: float
    """Per million tokens, prompt and output together, at the tiers' objectives."""
    split_per_million: float
    transfer_s: float
    """Of the mean prompt."""

    @property
    def ratio(self) -> float:
        """Return prefill seconds for each decode second."""
        return self.prefill_s / self.decode_s if self.decode_s else float("inf")

    @property
    def saving(self) -> float:
        """Return the share of the money that a split saves; negative where it costs more."""
        return 1 - self.split_per_hour / self.colocated_per_hour if self.colocated_per_hour else 0.0

    def lines(self) -> list[str]:
        """Return the advice as lines for a person."""
        return [
            f"advice: {self.verdict}",
            (
                f"prefill {self.prefill_s:.2f} and decode {self.decode_s:.2f} engine-seconds per second, "
                f"{self.ratio:.2f} to 1; price of decode work to prefill work {self.price_ratio:.2f} to 1"
            ),
            (
                f"one pool: {self.colocated_engines} engines, {self.colocated_per_hour:.2f} per hour, "
                f"{self.colocated_per_million:.3f} per million tokens"
            ),
            (
                f"split: {self.prefill_engines} + {self.decode_engines} engines, {self.split_per_hour:.2f} per hour, "
                f"{self.split_per_million:.3f} per million tokens ({100 * self.saving:+.0f} % saved)"
            ),
            f"transfer of the mean prompt: {1_000 * self.transfer_s:.1f} ms",
        ]


def advise_split(
    tiers: Sequence[TierLoad],
    today: PricedEngine,
    prefill: PricedEngine,
    decode: PricedEngine,
    transfer: KvTransfer,
    *,
    spread: float = 0.1,
) -> SplitAdvice:
    """Return whether two pools cost less than one at the same objectives.

    `spread` is the standard deviation of the logarithm of the work: two smaller pools need more spare engines.
    """
    needs = _needs(tiers, spread)
    tokens_per_s = sum(need.work.prefill_tokens + need.work.output_tokens for need in needs)
    requests = sum(need.work.requests for need in needs)
    if not needs or not tokens_per_s:
        return SplitAdvice(SplitVerdict.NO_TRAFFIC, *(0.0,) * 3, 0, 0, 0, *(0.0,) * 5)
    hand_over_s = transfer.seconds(sum(need.work.prefill_tokens for need in needs) / max(requests, 1e-9))
    late = [
        replace(need, objective=replace(need.objective, ttft_s=max(need.objective.ttft_s - hand_over_s, 0.0)))
        for need in needs
    ]
    colocated = ceil(engines_needed(needs, today.speed, Role.EITHER))
    prefilling = max(ceil(engines_needed(late, prefill.speed, Role.PREFILL)), 1)
    decoding = max(ceil(engines_needed(needs, decode.speed, Role.DECODE)), 1)
    without = max(ceil(engines_needed(needs, prefill.speed, Role.PREFILL)), 1)
    prefill_s, decode_s = work_seconds(needs, today.speed, colocated)
    on_prefill, _ = work_seconds(needs, prefill.speed, prefilling)
    _, on_decode = work_seconds(needs, decode.speed, decoding)
    today_price = colocated * today.price_per_hour
    price = prefilling * prefill.price_per_hour + decoding * decode.price_per_hour
    unhindered = without * prefill.price_per_hour + decoding * decode.price_per_hour
    millions = tokens_per_s * HOUR_S / 1e6
    return SplitAdvice(
        _verdict(colocated, today_price, price, unhindered),
        prefill_s,
        decode_s,
        _ratio(on_decode * decode.price_per_hour, decode_s)
        / max(_ratio(on_prefill * prefill.price_per_hour, prefill_s), 1e-9),
        colocated,
        prefilling,
        decoding,
        today_price,
        price,
        today_price / millions,
        price / millions,
        hand_over_s,
    )


@dataclass(frozen=True, slots=True)
class SplitChoice:
    """The advice for a model whose pools have several kinds of engines, and the pool of each kind that it compares."""

    advice: SplitAdvice
    colocated: str
    prefill: str
    decode: str


def choose_split(
    tiers: Sequence[TierLoad], kinds: Mapping[str, PricedEngine], transfer: KvTransfer, *, spread: float = 0.1
) -> SplitChoice:
    """Return the advice for the cheapest kind of engine for each kind of work. `kinds`: one at least, by pool.

    The money of the three is independent, so that each is found by itself.
    """
    needs = _needs(tiers, spread)

    def cheapest(role: Role) -> str:
        return min(kinds, key=lambda pool: (_cost(needs, kinds[pool], role), pool))

    colocated, prefill, decode = (cheapest(role) for role in (Role.EITHER, Role.PREFILL, Role.DECODE))
    advice = advise_split(tiers, kinds[colocated], kinds[prefill], kinds[decode], transfer, spread=spread)
    return SplitChoice(advice, colocated, prefill, decode)


def _cost(needs: Sequence[TierNeed], kind: PricedEngine, role: Role) -> float:
    """Return the money per hour of one kind of work, without rounding to whole engines."""
    return engines_needed(needs, kind.speed, role) * kind.price_per_hour


def _needs(tiers: Sequence[TierLoad], spread: float) -> list[TierNeed]:
    return [
        TierNeed(tier.objective, tier.offered, spread, tier.context_tokens, tier.arrival_scv, tier.prefill_scv)
        for tier in tiers
        if tier.offered.requests > 0
    ]


def work_seconds(needs: Sequence[TierNeed], speed: EngineSpeed, engines: int) -> tuple[float, float]:
    """Return engine-seconds of prefill and of decode per second, on this many engines of a kind."""
    prefill = sum(need.work.prefill_tokens for need in needs) / speed.prefill_tokens_per_s
    output = sum(need.work.output_tokens for need in needs)
    context = sum(need.context_tokens * need.work.output_tokens for need in needs) / max(output, 1e-9)
    count = max(engines, 1)
    return prefill, count * decode_share(output / count, speed, context, token_pace_s(needs, speed))


def _ratio(one: float, other: float) -> float:
    return one / other if other else 0.0


def _verdict(engines: int, today: float, split: float, without_transfer: float) -> SplitVerdict:
    if engines < MIN_ENGINES:
        return SplitVerdict.TOO_SMALL
    if split <= (1 - MIN_SAVING) * today:
        return SplitVerdict.SPLIT
    return SplitVerdict.TRANSFER if without_transfer <= (1 - MIN_SAVING) * today else SplitVerdict.NO_GAIN
