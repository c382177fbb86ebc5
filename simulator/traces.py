"""A trace: which requests came when, how long they were, and which prompts began alike. Never what they said.

Values only; `simulator.trace_formats` reads them from files, `simulator.workload` makes them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from random import Random

Runs = tuple[tuple[int, int], ...]
"""Ids as (first, how many) stretches of consecutive numbers: a long conversation shares them turn by turn."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace. `runs` are chain ids of its prompt's full blocks: equal id = equal prefix up to there."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    session: str | None = None
    runs: Runs = ()
    engine: int | None = None
    """Where it went when it was recorded, as a number from 0; None if not recorded."""

    @property
    def blocks(self) -> tuple[int, ...]:
        """The ids one by one."""
        return spread_runs(self.runs)

    def finer(self, factor: int) -> tuple[int, ...]:
        """Ids of blocks `factor` times smaller: a shared block is shared in all its parts."""
        return spread_runs(self.runs, factor)


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival, the first at 0 s. `block_tokens` is None if sharing was not recorded."""

    name: str
    arrivals: tuple[Arrival, ...]
    block_tokens: int | None = None

    def __repr__(self) -> str:
        return f"<Trace {self.name}: {len(self.arrivals)} requests in {self.length_s:.0f} s>"

    @property
    def engines(self) -> int:
        """Return on how many engines it was recorded; 0 if not recorded."""
        return 1 + max((-1 if one.engine is None else one.engine for one in self.arrivals), default=-1)

    @property
    def length_s(self) -> float:
        """From the first arrival to the last."""
        return self.arrivals[-1].at_s if self.arrivals else 0.0

    def first(self, limit: int | None) -> Trace:
        """Its first requests."""
        return self if limit is None else replace(self, arrivals=self.arrivals[:limit])

    def jittered(self, max_s: float, seed: int) -> Trace:
        """The same requests, each up to `max_s` later by a draw of its own. Those of a session keep their order."""
        if max_s <= 0.0:
            return self
        random, latest_s = Random(seed), dict[str, float]()
        moved = []
        for arrival in self.arrivals:
            at_s = arrival.at_s + random.uniform(0.0, max_s)
            if arrival.session is not None:
                at_s = latest_s[arrival.session] = max(at_s, latest_s.get(arrival.session, 0.0))
            moved.append(replace(arrival, at_s=at_s))
        return make_trace(self.name, moved, self.block_tokens)

    def faster(self, speed: float) -> Trace:
        """The same requests at `speed` times their rate."""
        if speed == 1.0:
            return self
        arrivals = tuple(replace(arrival, at_s=arrival.at_s / speed) for arrival in self.arrivals)
        return replace(self, arrivals=arrivals)


def make_trace(name: str, arrivals: Iterable[Arrival], block_tokens: int | None) -> Trace:
    """A trace of these requests, put in order and moved to begin at 0 s."""
    ordered = sorted(arrivals, key=lambda arrival: arrival.at_s)
    start_s = ordered[0].at_s if ordered else 0.0
    moved = ordered if start_s == 0.0 else [replace(one, at_s=one.at_s - start_s) for one in ordered]
    return Trace(name, tuple(moved), block_tokens)


def spread_runs(runs: Runs, factor: int = 1) -> tuple[int, ...]:
    """All ids of some runs, each cut into `factor` ids of its own."""
    return tuple(chain.from_iterable(range(first * factor, (first + count) * factor) for first, count in runs))


def gather_runs(ids: Sequence[int]) -> Runs:
    """The shortest runs that hold these ids in this order."""
    runs: list[tuple[int, int]] = []
    first = count = 0
    for number in ids:
        if count and number == first + count:
            count += 1
            continue
        if count:
            runs.append((first, count))
        first, count = number, 1
    if count:
        runs.append((first, count))
    return tuple(runs)


def cut_runs(runs: Runs, limit: int) -> Runs:
    """The first `limit` ids."""
    kept: list[tuple[int, int]] = []
    for first, count in runs:
        if limit <= 0:
            break
        kept.append((first, min(count, limit)))
        limit -= count
    return tuple(kept)


def count_runs(runs: Runs) -> int:
    """How many ids they hold."""
    return sum(count for _, count in runs)
