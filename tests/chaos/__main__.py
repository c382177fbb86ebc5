"""`python -m tests.chaos --seeds 1 2 3 --seconds 60 --rate 4`: one run a seed; exits 1 where a promise was broken.

Clients ask at a steady rate while deeds drawn from the seed are done to pods, gateways and Redis. Afterwards every
ledger must stand at zero. Logs of all programs lie in out/chaos/SEED.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp

from tests.chaos.cast import Cast, on_stage, pause, read_json
from tests.chaos.clients import Clients, Ended, Fate, draw_request
from tests.chaos.deeds import draw_deeds
from tests.chaos.doing import Doing
from tests.sources import ROOT

OUT = ROOT / "out" / "chaos"

SETTLED_S = 60.0
"""So long after the last answer nothing may be left anywhere."""

RESUMED = 0.999
"""Of the streams that lost their pod, so many must go on unbroken."""


@dataclass
class Tally:
    """What became of all requests of a run."""

    ended: list[Ended] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """What had not returned to zero."""

    @property
    def fates(self) -> Counter[Fate]:
        return Counter(one.fate for one in self.ended)

    def faults(self) -> list[str]:
        """Every broken promise in words."""
        bad = [f"#{one.asked.number} {one.fate}: {one.words}" for one in self.ended if one.fate in BROKEN]
        cut = self.fates[Fate.CUT]
        if cut > (1 - RESUMED) * len(self.ended):
            bad += [f"{cut} streams of {len(self.ended)} were cut"]
        return [*bad, *self.left]


BROKEN = (Fate.FAILED, Fate.WRONG)


async def play(seed: int, seconds: float, rate: float, folder: Path) -> Tally:
    """One run."""
    async with on_stage(folder) as cast, aiohttp.ClientSession() as session:
        deeds = draw_deeds(seed, seconds, len(cast.pods), len(cast.gateways))
        clients, tally = Clients(cast.front, cast.undisturbed.url), Tally()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(Doing(cast, session, lambda words: print(f"  {words}", flush=True)).all(deeds))
                await _ask(group, clients, tally, Random(seed), seconds, rate)
        finally:
            await clients.close()
        tally.left = await _left(cast, session)
        return tally


async def _ask(
    group: asyncio.TaskGroup, clients: Clients, tally: Tally, draw: Random, seconds: float, rate: float
) -> None:
    async def one(number: int) -> None:
        tally.ended.append(await clients.ask(draw_request(number, Random(f"{number} {draw.random()}"))))

    for number in range(round(seconds * rate)):
        group.create_task(one(number))
        await pause(draw.expovariate(rate))


async def _left(cast: Cast, session: aiohttp.ClientSession) -> list[str]:
    """Engines on which a gateway still has something, after everybody was given time."""
    left: list[str] = []
    for _ in range(round(SETTLED_S)):
        fleets = [(admin, await read_json(session, f"{admin}/fleet")) for admin in cast.admins]
        left = [f"{admin}: {words}" for admin, fleet in fleets for words in _charged(fleet)]
        if not left:
            break
        await pause(1.0)
    return left


def _charged(fleet: object) -> list[str]:
    if not isinstance(fleet, dict):
        return ["does not answer"]
    engines = [engine for pod in fleet["pods"] for engine in pod["engines"]]
    return [f"{engine['name']} is not at zero" for engine in engines if any(engine["ledger"].values())]


def main() -> int:
    """All seeds, one after the other."""
    asked = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    asked.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    asked.add_argument("--seconds", type=float, default=60.0)
    asked.add_argument("--rate", type=float, default=4.0)
    options = asked.parse_args()
    broken = 0
    for seed in options.seeds:
        folder = OUT / str(seed)
        folder.mkdir(parents=True, exist_ok=True)
        tally = asyncio.run(play(seed, options.seconds, options.rate, folder))
        faults = tally.faults()
        print(f"seed {seed}: {dict(tally.fates)}")
        print("".join(f"    {fault}\n" for fault in faults), end="", flush=True)
        broken += bool(faults)
    print(f"{broken} of {len(options.seeds)} runs broke a promise")
    return bool(broken)


if __name__ == "__main__":
    raise SystemExit(main())
