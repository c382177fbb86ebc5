"""Four gateways that share a Redis which dies for a fifth of the run, beside one gateway that needs none.

The Redis comes back empty. What counts: that no request fails, and how the four do from a minute after its return on,
against the one on the same requests at the same time.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bench.routing.contenders import OURS, hearth
from bench.routing.loads import LOADS
from bench.routing.rows import Row, row_of
from bench.routing.venue import BEFORE_START_S, Run, Venue, open_venue
from simulator.profile import Profile
from simulator.records import Replay
from simulator.report import report_on

LOAD = LOADS[0]
REQUESTS = 1_900
"""Six minutes at the live speed."""
DEAD_FROM, DEAD_TO = 0.35, 0.55
"""Of the run."""
SETTLING_S = 60.0


@dataclass(frozen=True, slots=True)
class Outage:
    """One run: whole rows, and those of the requests that came a minute after Redis was back or later."""

    length_s: float
    rows: tuple[Row, Row]
    after: tuple[Row, Row]


async def play_outage(engine: Profile, folder: Path) -> Outage:
    """Play it once. Raises ChildFailed."""
    four = hearth("hearth, 4 replicas, Redis dead for a fifth", copies=4, redis=True)
    async with AsyncExitStack() as stack:
        one_venue = await stack.enter_async_context(open_venue(hearth(OURS), engine, folder / "one"))
        four_venue = await stack.enter_async_context(open_venue(four, engine, folder / "four"))
        length_s = LOAD.live_trace(0, REQUESTS).length_s
        start_at_s = time.monotonic() + BEFORE_START_S
        one, many, _ = await asyncio.gather(
            one_venue.play(LOAD, 0, REQUESTS, start_at_s),
            four_venue.play(LOAD, 0, REQUESTS, start_at_s),
            _take_away(four_venue, start_at_s, length_s / engine.time_scale),
        )
    from_s = DEAD_TO * length_s + SETTLING_S * engine.time_scale
    after = tuple(_since(run, from_s, engine) for run in (one, many))
    return Outage(length_s, (one.row, many.row), (after[0], after[1]))


async def _take_away(venue: Venue, start_at_s: float, length_s: float) -> None:
    assert venue.redis is not None
    await asyncio.sleep(start_at_s + DEAD_FROM * length_s - time.monotonic())
    await venue.redis.kill()
    await asyncio.sleep(start_at_s + DEAD_TO * length_s - time.monotonic())
    await venue.redis.start()


def _since(run: Run, from_s: float, engine: Profile) -> Row:
    records = tuple(record for record in run.records if record.arrived_s >= from_s)
    length_s = max(one.arrived_s for one in records)
    replay = Replay(run.row.name, LOAD.name, ("all",), records, length_s, 0.0, is_live=True)
    return replace(row_of(f"{run.row.name}, after", report_on(replay, engine)), imbalance=run.row.imbalance)
