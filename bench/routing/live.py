"""Plays a load on all contenders at once, several times over, and gathers medians."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.routing.contenders import Contender
from bench.routing.loads import Load
from bench.routing.rows import Row, middle
from bench.routing.venue import BEFORE_START_S, Run, open_venue
from simulator.profile import Profile

APART_S = 0.3
"""Between the starts of two contenders: recorded clocks tick in seconds, and the bursts of all must not coincide."""


@dataclass(frozen=True, slots=True)
class Live:
    """One load: per contender its runs, in the order of the table."""

    load: Load
    runs: tuple[tuple[Run, ...], ...]

    @property
    def rows(self) -> list[Row]:
        """The median of each figure."""
        return [middle([run.row for run in runs]) for runs in self.runs]

    @property
    def lateness(self) -> str:
        """How far the machine kept up: where requests are sent late, it was the bottleneck and not a router."""
        late = " ".join(f"{median(run.late_s.p99 for run in runs):.2f}" for runs in self.runs)
        cpu = " ".join(f"{median(run.gateway_cpu_s for run in runs):.0f}" for runs in self.runs)
        return f"Of each row: requests sent late by s (p99): {late}; CPU seconds of the gateway: {cpu}."


async def play_live(
    load: Load, chosen: Sequence[Contender], engine: Profile, runs: int, requests: int | None, folder: Path
) -> Live:
    """`runs` times, each with fresh pods and jitter of its own. Raises ChildFailed."""
    played = []
    for seed in range(runs):
        print(f"{load.name}, live, run {seed + 1} of {runs} ...", file=sys.stderr, flush=True)
        played.append(await _once(load, chosen, engine, seed, requests, folder / f"{load.slug}-{seed}"))
        for run in played[-1]:
            print(f"  {run.row.name}: {run.text()}", file=sys.stderr, flush=True)
    return Live(load, tuple(zip(*played, strict=True)))


async def _once(
    load: Load, chosen: Sequence[Contender], engine: Profile, seed: int, requests: int | None, folder: Path
) -> list[Run]:
    async with AsyncExitStack() as stack:
        # One after the other: a program of ours spends a second of a core on its imports.
        venues = [
            await stack.enter_async_context(open_venue(contender, engine, folder / str(number)))
            for number, contender in enumerate(chosen)
        ]
        begin_s = time.monotonic() + BEFORE_START_S
        starts_s = [begin_s + number * APART_S for number in range(len(venues))]
        plays = (venue.play(load, seed, requests, at_s) for venue, at_s in zip(venues, starts_s, strict=True))
        return await asyncio.gather(*plays)
