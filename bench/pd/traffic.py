"""Kinds of traffic: made up by two lengths and a rate, or cut from recordings. Independent of engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Protocol

from simulator.trace_formats import load_trace
from simulator.traces import Arrival, Trace, make_trace
from simulator.workload import LogNormal

BLOCK = 512
"""Tokens; as those who recorded conversations have it."""

FILES = {
    "mooncake": "mooncake_conversation_trace.jsonl.gz",
    "azure-code": "azure2023_code.csv.gz",
    "claude-code": "claudecode_dev.jsonl.gz",
}


class Traffic(Protocol):
    """One kind of traffic."""

    @property
    def name(self) -> str: ...
    @property
    def is_drawn(self) -> bool: ...

    def arrivals(self, from_s: float, length_s: float, played_s: float, random: Random) -> Iterator[Arrival]:
        """Return the arrivals of `length_s` seconds, when `played_s` seconds of it were played already."""
        ...


@dataclass(frozen=True, slots=True)
class Made:
    """Requests that share nothing, by a Poisson clock. Lengths in tokens."""

    name: str
    requests_per_s: float
    prompt: LogNormal
    answer: LogNormal
    is_drawn: bool = True

    def arrivals(self, from_s: float, length_s: float, played_s: float, random: Random) -> Iterator[Arrival]:
        at_s = from_s
        while (at_s := at_s + random.expovariate(self.requests_per_s)) < from_s + length_s:
            prompt = min(int(self.prompt.draw(random)) + 1, 100_000)
            answer = min(int(self.answer.draw(random)) + 1, 4_096)
            yield Arrival(at_s, prompt, answer)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording from its beginning, sped up."""

    name: str
    speed: float
    is_drawn: bool = False

    def arrivals(self, from_s: float, length_s: float, played_s: float, random: Random) -> Iterator[Arrival]:
        offset = list(FILES).index(self.name) << 48
        for arrival in full_trace(self.name).faster(self.speed).arrivals:
            if played_s <= arrival.at_s < played_s + length_s:
                # Recordings number their blocks from 0, each by itself.
                runs = tuple((first + offset, count) for first, count in arrival.runs)
                yield replace(arrival, at_s=arrival.at_s - played_s + from_s, runs=runs)


@cache
def full_trace(name: str) -> Trace:
    """A recording. Raises `TraceFault` where it is missing."""
    return load_trace(Path(FILES[name]))


def piece(name: str, begin: int, requests: int, *, speed: float) -> Trace:
    """Cut `requests` requests out of a recording, sped up. Raises `TraceFault` where it is missing."""
    trace = full_trace(name)
    return make_trace(name, trace.arrivals[begin : begin + requests], trace.block_tokens).faster(speed)


PROMPTS = Made("long prompts", 2.5, LogNormal(6_000, 12_000), LogNormal(60, 120))
ANSWERS = Made("long answers", 5.0, LogNormal(400, 1_000), LogNormal(500, 1_000))

AZURE, CLAUDE, MOONCAKE = Recorded("azure-code", 3.0), Recorded("claude-code", 0.6), Recorded("mooncake", 0.8)
