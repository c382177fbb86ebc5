"""What is played: recorded traffic unchanged, and days that turn from one kind of traffic to another and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from bench.pd.traffic import ANSWERS, AZURE, BLOCK, CLAUDE, MOONCAKE, PROMPTS, Traffic, piece
from simulator.link import Link
from simulator.profile import Profile
from simulator.traces import Trace, make_trace

ENGINES = 8

PATIENCE_S = 60.0
"""A client without a first token by then gives up: else one bad phase would burden all that follow."""

LARGE = Profile(
    prefill_tokens_per_s=4_000.0,
    step_base_s=0.020,
    step_per_sequence_s=0.001_2,
    step_per_kv_token_s=0.000_000_05,
    kv_capacity_tokens=600_000,
)
"""A large dense model on a node of GPUs: where splitting is argued about."""

LARGE_LINK = Link(bytes_per_token=327_680)
"""Eighty layers of eight heads, over a 200 Gb/s card."""

MIDDLE = Profile(block_size=BLOCK)
"""A mid-sized model on one GPU. Blocks as long as the recordings' own: shorter ones say nothing more."""

WIDE = Profile(step_base_s=0.020, step_per_sequence_s=0.001_2, block_size=BLOCK)
"""As quick at prefill, and soon slow where many decode: one of several GPUs that talk to each other at every step."""

HOUR_PHASE_S = 1_200.0
"""Phases of a recorded hour: changes of role are counted by them."""

ALONE_S = 300.0
"""How long a kind of traffic is played by itself, to find out which fixed split is best for it."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A trace and its objectives. `phases`: (from when, kind), where it shifts."""

    name: str
    trace: Trace
    ttft_s: float
    tpot_s: float
    profile: Profile = MIDDLE
    link: Link = field(default_factory=Link)
    phases: tuple[tuple[float, str], ...] = ()
    kinds: tuple[Traffic, ...] = ()
    """Of its phases, in turn."""

    @property
    def shifts(self) -> bool:
        """Whether it changes its kind over time."""
        return len({kind for _, kind in self.phases}) > 1

    @property
    def is_hour(self) -> bool:
        """Whether it is one recording, by itself and whole."""
        return bool(self.phases) and not self.shifts


@dataclass(frozen=True, slots=True)
class Day:
    """A day that turns every `phase_s` seconds, `phases` in all."""

    name: str
    kinds: tuple[Traffic, ...]
    phase_s: float
    phases: int
    ttft_s: float
    tpot_s: float
    profile: Profile
    link: Link = field(default_factory=Link)

    @property
    def is_drawn(self) -> bool:
        """Whether another seed makes it another day."""
        return any(kind.is_drawn for kind in self.kinds)

    def workload(self, seed: int) -> Workload:
        """The workload with one seed, which draws what was not recorded."""
        random, count = Random(seed), len(self.kinds)
        turns = [(number * self.phase_s, self.kinds[number % count]) for number in range(self.phases)]
        arrivals = [
            arrival
            for number, (at_s, kind) in enumerate(turns)
            for arrival in kind.arrivals(at_s, self.phase_s, number // count * self.phase_s, random)
        ]
        marks = tuple((at_s, kind.name) for at_s, kind in turns)
        trace = make_trace(self.name, arrivals, BLOCK)
        return Workload(self.name, trace, self.ttft_s, self.tpot_s, self.profile, self.link, marks, self.kinds)


def alone(kind: str, of: Workload, seed: int) -> Workload:
    """Five minutes of one kind of a workload's traffic, from an empty fleet."""
    chosen = next(one for one in of.kinds if one.name == kind)
    trace = make_trace(kind, list(chosen.arrivals(0.0, ALONE_S, 0.0, Random(seed))), BLOCK)
    return Workload(kind, trace, of.ttft_s, of.tpot_s, of.profile, of.link, ((0.0, kind),), of.kinds)


def steady(requests: int) -> Iterator[Workload]:
    """Recorded traffic at rates that eight engines bear: a piece that defaults were tuned on, and one not looked at."""
    for name, begin in (("tuned on", 0), ("held out", 6_000)):
        yield Workload(f"mooncake, {name}", piece("mooncake", begin, requests, speed=1.0), 3.0, 0.05)
    for name, begin in (("tuned on", 0), ("held out", 5_000)):
        yield Workload(f"azure-code, {name}", piece("azure-code", begin, requests, speed=4.0), 1.0, 0.05)
    for name, begin in (("tuned on", 0), ("held out", 2_000)):
        yield Workload(f"claude-code, {name}", piece("claude-code", begin, requests, speed=1.0), 3.0, 0.05)


def hours(*, is_quick: bool) -> Sequence[Day]:
    """Each recording by itself, as long as it lasts, in phases of twenty minutes."""
    return [
        Day(f"{kind.name}, recorded hour", (kind,), HOUR_PHASE_S, 1 if is_quick else phases, 5.0, 0.06, WIDE)
        for kind, phases in ((AZURE, 1), (CLAUDE, 5), (MOONCAKE, 4))
    ]


def shifting(*, is_quick: bool) -> Sequence[Day]:
    """Every five minutes, and every twenty; made up, and put together from recorded traffic."""
    made = (PROMPTS, ANSWERS), 8.0, 0.065, LARGE, LARGE_LINK
    recorded = (AZURE, CLAUDE, MOONCAKE), 5.0, 0.06, WIDE, Link()
    return [
        Day(f"{name}, turns every {minutes} min", kinds, minutes * 60.0, phases, ttft_s, tpot_s, profile, link)
        for name, (kinds, ttft_s, tpot_s, profile, link), turns in (
            ("made up", made, ((5, 2 if is_quick else 4), (20, 2))),
            ("recorded", recorded, ((5, 3 if is_quick else 6), (20, 3))),
        )
        for minutes, phases in turns
    ]
