"""What is played: recorded traffic as it comes, and days that turn from long prompts to long answers and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from simulator.link import Link
from simulator.profile import Profile
from simulator.trace_formats import load_trace
from simulator.traces import Arrival, Trace, make_trace
from simulator.workload import BLOCK_TOKENS, LogNormal

ENGINES = 8

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

MIDDLE = Profile()

ALONE_S = 300.0
"""How long a kind of traffic is played by itself, to find out which fixed split is best for it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of traffic. Lengths in tokens."""

    name: str
    requests_per_s: float
    prompt: LogNormal
    answer: LogNormal


PROMPTS = Kind("long prompts", 2.5, LogNormal(6_000, 12_000), LogNormal(60, 120))
ANSWERS = Kind("long answers", 5.0, LogNormal(400, 1_000), LogNormal(500, 1_000))


@dataclass(frozen=True, slots=True)
class Workload:
    """A trace and what is promised to who sends it. `phases`: (from when, kind), where it shifts."""

    name: str
    trace: Trace
    ttft_s: float
    tpot_s: float
    profile: Profile = MIDDLE
    link: Link = field(default_factory=Link)
    phases: tuple[tuple[float, str], ...] = ()

    @property
    def shifts(self) -> bool:
        """Whether it changes its kind as it goes."""
        return bool(self.phases)


def turning(name: str, phase_s: float, phases: int, seed: int) -> Workload:
    """A day that turns every `phase_s` seconds."""
    random = Random(seed)
    kinds = [(PROMPTS, ANSWERS)[number % 2] for number in range(phases)]
    arrivals = [
        arrival for number, kind in enumerate(kinds) for arrival in _arrivals(kind, number * phase_s, phase_s, random)
    ]
    marks = tuple((number * phase_s, kind.name) for number, kind in enumerate(kinds))
    trace = make_trace(name, arrivals, BLOCK_TOKENS)
    return Workload(name, trace, 8.0, 0.065, LARGE, LARGE_LINK, marks)


def alone(kind: str, of: Workload, seed: int) -> Workload:
    """Five minutes of one kind of a workload's traffic, from an empty fleet."""
    random = Random(seed)
    chosen = PROMPTS if kind == PROMPTS.name else ANSWERS
    trace = make_trace(kind, list(_arrivals(chosen, 0.0, ALONE_S, random)), BLOCK_TOKENS)
    return Workload(kind, trace, of.ttft_s, of.tpot_s, of.profile, of.link, ((0.0, kind),))


def _arrivals(kind: Kind, from_s: float, length_s: float, random: Random) -> Iterator[Arrival]:
    """Requests that share nothing, by a Poisson clock."""
    at_s = from_s
    while (at_s := at_s + random.expovariate(kind.requests_per_s)) < from_s + length_s:
        prompt = min(int(kind.prompt.draw(random)) + 1, 100_000)
        answer = min(int(kind.answer.draw(random)) + 1, 4_096)
        first = random.getrandbits(56)
        yield Arrival(at_s, prompt, answer, None, ((first, prompt // BLOCK_TOKENS),) if prompt >= BLOCK_TOKENS else ())


def recorded(name: str, file: str, *, requests: int, speed: float, ttft_s: float, tpot_s: float) -> Workload:
    """The beginning of a recorded trace, so much faster. Raises `TraceFault` where it is missing."""
    trace = load_trace(Path(file)).first(requests).faster(speed)
    return Workload(name, trace, ttft_s, tpot_s)


def steady(requests: int) -> Iterator[Workload]:
    """Recorded traffic, at rates that eight engines bear."""
    yield recorded(
        "mooncake", "mooncake_conversation_trace.jsonl.gz", requests=requests, speed=1.0, ttft_s=3.0, tpot_s=0.05
    )
    yield recorded("azure-code", "azure2023_code.csv.gz", requests=requests, speed=4.0, ttft_s=1.0, tpot_s=0.05)
    yield recorded("claude-code", "claudecode_dev.jsonl.gz", requests=requests, speed=2.0, ttft_s=3.0, tpot_s=0.05)


def shifting(seed: int, *, is_quick: bool) -> Iterator[Workload]:
    """Every five minutes, and every twenty."""
    yield turning("turns every 5 min", 300.0, 2 if is_quick else 4, seed)
    yield turning("turns every 20 min", 1_200.0, 2, seed)
