"""Requests of hours and days: arrival times drawn from a rate curve, sizes drawn or taken from a trace."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, pi, sin
from pathlib import Path
from random import Random

from supply.load import EngineSpeed, TierObjective

DAY_S = 86_400.0
MONDAY_S = 1_800_230_400.0
"""A Monday, 00:00 UTC: the first second of every measured period."""

SPEED = EngineSpeed(
    kind="bench",
    prefill_tokens_per_s=2_700.0,
    step_base_s=0.015,
    step_per_sequence_s=0.000_3,
    step_per_kv_token_s=0.000_000_02,
    kv_capacity_tokens=600_000.0,
    max_sequences=128,
)
"""2,700 tokens/s of prefill: measured on one project's engines, where 16,000 had been configured."""

TIERS = (
    TierObjective("gold", 100, ttft_s=3.0, ttft_uncached_factor=2.0, tpot_s=0.06, probability=0.985),
    TierObjective("silver", 50, ttft_s=12.0, ttft_uncached_factor=2.0, tpot_s=0.1, probability=0.97),
)
GOLD_SHARE = 0.4
PEAK_RPS = 5.0

Rate = Callable[[float], float]
"""Requests per second over those of the peak, by seconds since the first measured Monday; negative: history."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Prompts (tokens without a cached copy) and answers to draw from; empty: lognormal ones."""

    name: str = "lognormal"
    pairs: tuple[tuple[int, int], ...] = ()
    prefill_mean: float = 6_000.0
    prefill_scv: float = 0.9
    output_mean: float = 250.0


LOGNORMAL = Sizes()


@dataclass(slots=True)
class Arrivals:
    """Columns, one entry a request, in the order of time."""

    at: list[float]
    tier: list[int]
    prefill: list[float]
    output: list[float]

    def __len__(self) -> int:
        return len(self.at)


def draw(rate: Rate, seconds: float, sizes: Sizes, random: Random, peak_rps: float = PEAK_RPS) -> Arrivals:
    """Return the arrivals of a Poisson process whose rate follows the curve, minute by minute."""
    found = Arrivals([], [], [], [])
    at = 0.0
    while at < seconds:
        step, per_s = min(30.0, seconds - at), rate(at) * peak_rps
        moment = at
        while per_s > 0 and (moment := moment + random.expovariate(per_s)) < at + step:
            prefill, output = _size(sizes, random)
            found.at.append(moment)
            found.tier.append(0 if random.random() < GOLD_SHARE else 1)
            found.prefill.append(prefill)
            found.output.append(output)
        at += step
    return found


def _size(sizes: Sizes, random: Random) -> tuple[float, float]:
    if sizes.pairs:
        prefill, output = sizes.pairs[int(random.random() * len(sizes.pairs))]
        return float(prefill), float(output)
    return (
        min(max(random.lognormvariate(-0.32, 0.8) * sizes.prefill_mean, 16.0), 40_000.0),
        min(max(random.lognormvariate(-0.245, 0.7) * sizes.output_mean, 4.0), 4_000.0),
    )


def mooncake(traces: Path) -> Sizes | None:
    """Return the sizes of Mooncake's conversations, cached blocks taken off; None where the trace is not there."""
    path = traces / "mooncake_conversation_trace.jsonl.gz"
    if not path.exists():
        return None
    seen: set[int] = set()
    pairs = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            cached = 0
            for block in row["hash_ids"]:
                if block not in seen:
                    break
                cached += 1
            seen.update(row["hash_ids"])
            pairs.append((max(row["input_length"] - 512 * cached, 16), max(row["output_length"], 1)))
    prefill = sum(one for one, _ in pairs) / len(pairs)
    square = sum((one - prefill) ** 2 for one, _ in pairs) / len(pairs)
    output = sum(one for _, one in pairs) / len(pairs)
    return Sizes("Mooncake conversations", tuple(pairs), prefill, square / prefill**2, output)


# --- Curves: of seconds since a Monday 00:00 --------------------------------------------------------------------------


def day_curve(at: float) -> float:
    """A smooth day: a quarter at night, the peak in the afternoon."""
    hour = at % DAY_S / 3_600
    return 0.25 + 0.75 * max(sin((hour - 6) / 18 * pi), 0.0) ** 1.5 if hour >= 6 else 0.25


def office_curve(at: float) -> float:
    """A week of offices: work starts within five minutes, lunch, an end, a nightly job, quiet weekends."""
    hour, weekday = at % DAY_S / 3_600, int(at // DAY_S) % 7
    if weekday >= 5:
        return 0.15 + 0.05 * max(sin((hour - 8) / 12 * pi), 0.0)
    value = 0.15
    value += 0.75 * _edge(hour, 9.0, 5 / 60) * (1 - _edge(hour, 18.0, 0.5))
    value -= 0.25 * _edge(hour, 12.0, 0.2) * (1 - _edge(hour, 13.0, 0.1))
    value += 0.45 * _edge(hour, 2.0, 2 / 60) * (1 - _edge(hour, 2.75, 2 / 60))
    return value


def _edge(hour: float, at: float, width: float) -> float:
    return min(max((hour - at) / width, 0.0), 1.0)


def bursts(base: float, height: float, times: Sequence[float], lasting: float) -> Rate:
    """Return a flat rate with bursts that nothing announces."""
    return lambda at: base * (height if any(0 <= at - begin < lasting for begin in times) else 1.0)


def levels(random: Random, seconds: float, history_s: float) -> Rate:
    """Return levels that change at random times to random values: no pattern at all."""
    changes: list[tuple[float, float]] = []
    at = -history_s
    while at < seconds:
        changes.append((at, random.uniform(0.25, 0.9)))
        at += random.expovariate(1 / (1.5 * 3_600))
    starts = [one for one, _ in changes]

    def rate(moment: float) -> float:
        low, high = 0, len(starts)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if starts[middle] <= moment else (low, middle)
        return changes[low][1]

    return rate


def with_days(rate: Rate, random: Random, days: int = 60, deviation: float = 0.08) -> Rate:
    """Return the curve with a factor of its own for each day, so that no day repeats another exactly."""
    factors = [exp(random.gauss(0, deviation)) for _ in range(days)]
    return lambda at: rate(at) * factors[int(at // DAY_S) % days]


def history_of(rate: Rate, seconds: float, sizes: Sizes, random: Random) -> Iterator[tuple[float, float, float]]:
    """Yield (seconds before the measured period as a negative time, requests per second, noise factor) each minute."""
    at = -seconds
    while at < 0:
        per_s = rate(at) * PEAK_RPS
        count = max(per_s * 60, 1e-9)
        deviation = ((1 + sizes.prefill_scv) / count) ** 0.5
        yield at, per_s, max(1 + random.gauss(0, deviation), 0.05)
        at += 60.0
