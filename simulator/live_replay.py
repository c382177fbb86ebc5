"""Plays a trace in real time, over HTTP: a client, the real gateway, simulated pods, each a program of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp

from simulator.display import Display
from simulator.player import Player, Venue
from simulator.processor import Meter
from simulator.profile import Profile
from simulator.records import Record, Replay
from simulator.spread import spread_of
from simulator.stage import MODEL, Stage, staged
from simulator.traces import Trace


async def play_on_stages(
    trace: Trace, routings: Sequence[str], pods: int, profile: Profile, logs: Path, display: Display
) -> list[Replay]:
    """One replay after another, each on pods and a gateway of its own. Raises `ChildFailed`."""
    replays = []
    for routing in routings:
        async with staged(routing, pods, profile, logs) as stage:
            display.begin(routing, len(trace.arrivals))
            replays.append(await play_live(trace, routing, stage, profile.time_scale, display))
    return replays


async def play_live(
    trace: Trace, routing: str, stage: Stage, time_scale: float, note: Callable[[Record], None]
) -> Replay:
    """Play a trace onto a stage that is ready. `time_scale`: engine seconds in a real one, of pods and arrivals."""
    names = {url: f"pod-{number}" for number, url in enumerate(stage.pods)}
    venue = Venue(stage.url, MODEL, time_scale, names, stage.admin_url)
    meter = Meter(stage.pids)
    started_s = time.monotonic()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        player = Player(trace, venue, client, note)
        records = await player.play()
    took_s = time.monotonic() - started_s
    return Replay(
        routing=routing,
        trace=trace.name,
        pods=tuple(names.values()),
        records=tuple(records),
        length_s=max(one.arrived_s + (one.duration_s or 0.0) for one in records),
        took_s=took_s,
        is_live=True,
        late_s=spread_of(player.late_s),
        busy=meter.busy(),
    )
