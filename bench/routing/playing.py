"""The client of one contender, a program of its own: plays a load and writes what became of each request.

    python -m bench.routing.playing JOB RECORDS

JOB is a JSON file (see `Job`); RECORDS gets the records and how late requests were sent, as JSON.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import asdict
from pathlib import Path

import aiohttp
import msgspec
import uvloop

from bench.routing.loads import LOADS
from simulator.player import Player, Venue
from simulator.records import Record
from simulator.stage import MODEL


class Job(msgspec.Struct):
    """What to play, and where."""

    load: str
    requests: int | None
    seed: int
    time_scale: float
    urls: list[str]
    start_at_s: float
    """Of the monotonic clock, which all programs of a machine share."""


class Played(msgspec.Struct):
    """What came of it."""

    records: list[Record]
    late_s: list[float]


async def _play(job: Job) -> Played:
    load = next(load for load in LOADS if load.name == job.load)
    trace = load.live_trace(job.seed, job.requests)
    venue = Venue(job.urls[0], MODEL, job.time_scale, {}, more_urls=tuple(job.urls[1:]))
    gc.freeze()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        player = Player(trace, venue, client, lambda _record: None)
        return Played(await player.play(job.start_at_s), player.late_s)


def main() -> int:
    job = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Job)
    played = uvloop.run(_play(job))
    document = {"records": [asdict(record) for record in played.records], "late_s": played.late_s}
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
