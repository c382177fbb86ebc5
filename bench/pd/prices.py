"""Two kinds of engines with prices: the cheapest fleets that keep the same objectives, split and colocated.

Each search starts from what `supply.split_advice` estimates of the traffic, and plays fleets until the cheapest of its
layout is found: one engine less of any kind misses the objectives. So the estimate is held against the simulation too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from bench.pd.traffic import piece
from bench.pd.workloads import PATIENCE_S, WIDE, Workload
from bench.target import Target
from simulator.link import Link
from simulator.profile import Profile
from simulator.replay import Setting, play
from simulator.split import Split
from simulator.traces import Trace
from supply.load import EngineSpeed, OfferedWork, TierLoad, TierObjective
from supply.split_advice import KvTransfer, PricedEngine, choose_split

KEPT = 0.9
"""Share of requests that must meet both objectives."""

COMPUTE, COMPUTE_PRICE = WIDE, 4.0
MEMORY, MEMORY_PRICE = replace(WIDE, prefill_tokens_per_s=WIDE.prefill_tokens_per_s / 3), 1.6
"""The same bandwidth of memory, a third of the compute, and less than half of the price per hour."""

PRICES = {"compute": COMPUTE_PRICE, "memory": MEMORY_PRICE}
PROFILES = {"compute": COMPUTE, "memory": MEMORY}

MAX_PLAYED = 12
"""Fleets that one search plays."""

REQUESTS = 1_200


@dataclass(frozen=True, slots=True)
class Layout:
    """A fleet: engines that prefill and engines that decode, or `prefill` engines that do both (`decode` 0)."""

    kinds: tuple[str, str]
    """Of both, in turn."""
    prefill: int
    decode: int = 0

    @property
    def per_hour(self) -> float:
        """Return its price."""
        return self.prefill * PRICES[self.kinds[0]] + self.decode * PRICES[self.kinds[1]]

    def __str__(self) -> str:
        if not self.decode:
            return f"{self.prefill} {self.kinds[0]}"
        return f"{self.prefill} {self.kinds[0]} + {self.decode} {self.kinds[1]}"


@dataclass(frozen=True, slots=True)
class Kept:
    """What a layout has kept: shares of all requests."""

    goodput: float
    late_first: float
    slow: float
    """First token in time, and pace too slow."""


@dataclass(frozen=True, slots=True)
class PriceRow:
    """The cheapest fleet of a way, and the estimate that the search began with."""

    name: str
    estimate: Layout
    found: Layout
    goodput: float
    per_million: float


def workload(*, is_quick: bool) -> Workload:
    """Return a stretch of recorded conversations that no default was chosen by."""
    trace = piece("mooncake", 7_500, 300 if is_quick else REQUESTS, speed=1.0)
    return Workload("two kinds of engines, mooncake", trace, 5.0, 0.06, WIDE)


def price_rows(of: Workload) -> list[PriceRow]:
    """Return the cheapest fleets: each kind by itself, and split."""
    tier, seconds = offered(of)
    kinds = {name: PricedEngine(_speed(name), price) for name, price in PRICES.items()}
    transfer = KvTransfer(Link().bytes_per_token, Link().bytes_per_s, Link().fixed_s)
    millions = sum(arrival.prompt_tokens + arrival.output_tokens for arrival in of.trace.arrivals) / 1e6
    rows = []
    for name, kind in kinds.items():
        advice = choose_split([tier], {name: kind}, transfer).advice
        rows.append(_row(f"colocated, {name}", Layout((name, name), advice.colocated_engines), of, millions, seconds))
    choice = choose_split([tier], kinds, transfer)
    begin = Layout((choice.prefill, choice.decode), choice.advice.prefill_engines, choice.advice.decode_engines)
    return [*rows, _row("split", begin, of, millions, seconds)]


def price_targets(of: Workload, rows: list[PriceRow]) -> Iterator[Target]:
    """Return what is wanted: the split costs less at the same objectives, and the estimate is near."""
    colocated = min(row.per_million for row in [row for row in rows[:-1] if row.goodput >= KEPT] or rows[:-1])
    yield Target(f"{of.name}: money of the split by that of the best colocated", 1.0, rows[-1].per_million / colocated)
    yield Target(
        f"{of.name}: estimated money of the split by what was found",
        1.25,
        rows[-1].estimate.per_hour / rows[-1].found.per_hour,
    )


def price_table(of: Workload, rows: list[PriceRow]) -> str:
    """Return the rows as text."""
    title = f"{of.name}: {len(of.trace.arrivals)} requests, {of.ttft_s:g} s, {of.tpot_s:g} s, {KEPT:.0%} of them"
    prices = ", ".join(f"{name} {price:g} per hour" for name, price in PRICES.items())
    lines = [title, prices, f"{'way':>20}  {'estimate':>22}  {'found':>22}  per hour  goodput  per M tokens"]
    lines += [
        f"{row.name:>20}  {row.estimate!s:>22}  {row.found!s:>22}  {row.found.per_hour:8.2f}  {row.goodput:7.3f}"
        f"  {row.per_million:12.4f}{'' if row.goodput >= KEPT else '  (objectives not kept)'}"
        for row in rows
    ]
    return "\n".join(lines)


def offered(of: Workload) -> tuple[TierLoad, float]:
    """Return a trace's work as the gateways count it, with an endless cache, and the seconds that it lasts."""
    trace, cold = of.trace, cold_tokens(of.trace)
    seconds = max(trace.arrivals[-1].at_s - trace.arrivals[0].at_s, 1.0)
    outputs = sum(arrival.output_tokens for arrival in trace.arrivals)
    work = OfferedWork(len(cold), float(sum(cold)), float(outputs)).scaled(1 / seconds)
    context = sum(arrival.prompt_tokens + arrival.output_tokens / 2 for arrival in trace.arrivals) / len(cold)
    mean = sum(cold) / len(cold)
    scv = sum((tokens - mean) ** 2 for tokens in cold) / len(cold) / mean**2
    objective = TierObjective("all", ttft_s=of.ttft_s, tpot_s=of.tpot_s, probability=KEPT)
    return TierLoad(objective, work, context_tokens=context, prefill_scv=scv), seconds


def cold_tokens(trace: Trace) -> list[int]:
    """Return the tokens of each prompt that no earlier request had."""
    seen, size, found = set[int](), trace.block_tokens or 1, []
    for arrival in trace.arrivals:
        blocks = arrival.blocks
        known = next((at for at, block in enumerate(blocks) if block not in seen), len(blocks))
        found.append(max(arrival.prompt_tokens - known * size, 1))
        seen.update(blocks)
    return found


def _speed(kind: str) -> EngineSpeed:
    profile: Profile = PROFILES[kind]
    return EngineSpeed(
        kind,
        profile.prefill_tokens_per_s,
        profile.step_base_s,
        profile.step_per_sequence_s,
        profile.step_per_kv_token_s,
        profile.kv_capacity_tokens,
        profile.max_num_seqs,
    )


def _row(name: str, estimate: Layout, of: Workload, millions: float, seconds: float) -> PriceRow:
    found, result = cheapest(estimate, lambda layout: _play(layout, of))
    return PriceRow(name, estimate, found, result.goodput, found.per_hour * seconds / 3_600 / millions)


def cheapest(begin: Layout, play_fleet: Callable[[Layout], Kept]) -> tuple[Layout, Kept]:
    """Return a fleet that keeps the objectives, of which no engine can be left out, or the best within `MAX_PLAYED`."""
    played: dict[Layout, Kept] = {}

    def kept(layout: Layout) -> Kept:
        if layout not in played:
            played[layout] = play_fleet(layout)
        return played[layout]

    now = begin
    while kept(now).goodput < KEPT and len(played) < MAX_PLAYED:
        more = not now.decode or kept(now).late_first >= kept(now).slow
        now = replace(now, prefill=now.prefill + 1) if more else replace(now, decode=now.decode + 1)
    while len(played) < MAX_PLAYED:
        fewer = [
            layout
            for layout in (replace(now, prefill=now.prefill - 1), replace(now, decode=now.decode - 1))
            if layout.prefill >= 1 and (layout.decode >= 1 or not now.decode) and layout.decode >= 0
        ]
        good = next(
            (layout for layout in sorted(fewer, key=lambda one: one.per_hour) if kept(layout).goodput >= KEPT), None
        )
        if good is None:
            break
        now = good
    return now, kept(now)


def _play(layout: Layout, of: Workload) -> Kept:
    prefill, decode = (PROFILES[kind] for kind in layout.kinds)
    split = Split(layout.prefill, is_forced=True, link=of.link) if layout.decode else None
    setting = Setting(
        "warm",
        layout.prefill + layout.decode,
        decode,
        deadline_s=PATIENCE_S,
        split=split,
        profiles=(prefill,) * layout.prefill,
    )
    records = play(of.trace, setting).records
    is_late = [not one.is_answered or one.ttft_s is None or one.ttft_s > of.ttft_s for one in records]
    is_slow = [not late and (one.tpot_s or 0.0) > of.tpot_s for one, late in zip(records, is_late, strict=True)]
    late, slow = sum(is_late) / len(records), sum(is_slow) / len(records)
    return Kept(1 - late - slow, late, slow)
