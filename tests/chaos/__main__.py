"""`python -m tests.chaos`: the seeds that once failed and five more, a minute each, then deeds that last for so
long that the doctor finds them; exits 1 where a promise was broken.

`--minutes 60` plays scene after scene on one and the same stage, in every other one of which nearly all that is done is
to cut streams; `--roll` rolls everything under load, `--upgrade COMMIT` all gateways from that version to this and
back. Logs of all programs lie in out/chaos.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

from bench.overhead.paired import checkout, has_commit
from tests.chaos.cast import on_stage
from tests.chaos.clients import Fate
from tests.chaos.deeds import CUTTING, DENSE, Kind, Pace
from tests.chaos.doing import Doing
from tests.chaos.findings import FINDABLE, LASTING
from tests.chaos.play import Scene, play, play_with
from tests.chaos.report import Tally
from tests.chaos.rolling import roll, upgrade
from tests.chaos.seeds import keep_seed, read_seeds
from tests.sources import ROOT

OUT = ROOT / "out" / "chaos"

FOUND_SEED, FOUND_SECONDS = 3, 150.0
"""Of the scene whose deeds last: three pods suffer in three ways, and Redis in three."""

SCENE_S = 240.0
"""Of a long run: after each scene everything must be at rest."""


ONLY = replace(DENSE, back_s=3.0)
"""Of deeds of one kind: on a busy machine a pod hears late that it is well again, and one must always be."""


def empty(name: str) -> Path:
    """A folder for a run's logs, without those of the last one."""
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def log_event(words: str) -> None:
    print(f"  {words}", flush=True)


async def by_seeds(options: argparse.Namespace) -> AsyncIterator[Tally]:
    """Each seed on a stage of its own, so that it can be played again alone."""
    for seed in options.seeds or dict.fromkeys((*read_seeds(), *range(1, 6))):
        async with on_stage(empty(f"seed-{seed}"), thinks=options.thinking) as cast:
            tally = await play(cast, a_scene(options, seed, options.seconds), log_event)
        if tally.faults() and not options.seeds and keep_seed(seed, tally.faults()[0]):
            log_event(f"seed {seed} is kept in seeds.txt")
        yield tally
    if not options.seeds and not options.only:
        yield await found(options)


async def found(options: argparse.Namespace) -> Tally:
    """Deeds that last for long enough to be found, and nothing else: what the doctor says of them is judged."""
    scene = replace(a_scene(options, FOUND_SEED, FOUND_SECONDS), kinds=FINDABLE, pace=LASTING)
    async with on_stage(empty("findings"), thinks=options.thinking) as cast:
        tally = await play(cast, scene, log_event)
    tally.name = "lasting deeds"
    return tally


async def for_long(options: argparse.Namespace) -> AsyncIterator[Tally]:
    """Scene after scene on one stage: what is left over by one would be found in the next."""
    scenes = max(1, round(options.minutes * 60 / SCENE_S))
    first = options.seeds[0] if options.seeds else 1
    async with on_stage(empty("long"), thinks=options.thinking) as cast:
        for seed in islice(count(first), scenes):
            scene = a_scene(options, seed, min(SCENE_S, options.minutes * 60))
            yield await play(cast, scene if seed % 2 else replace(scene, kinds=CUTTING, pace=DENSE), log_event)


async def rolled(options: argparse.Namespace) -> AsyncIterator[Tally]:
    """Everything once, under load."""
    async with on_stage(empty("roll"), thinks=options.thinking) as cast:
        doing = Doing(cast, log_event)
        tally = await play_with(cast, a_scene(options, 1, 1.0), doing, lambda: roll(cast, doing))
        tally.name, tally.deeds = "roll", len(cast.pods) + len(cast.gateways)
        yield tally


async def upgraded(options: argparse.Namespace) -> AsyncIterator[Tally]:
    """All gateways from another version to this one and back, under load."""
    with checkout(options.upgrade) as before:
        async with on_stage(empty("upgrade"), thinks=options.thinking, gateways_from=before) as cast:
            doing = Doing(cast, log_event)
            scene = a_scene(options, 1, 1.0)
            tally = await play_with(cast, scene, doing, lambda: upgrade(cast, doing, before=before, now=ROOT))
            tally.name, tally.deeds = f"upgrade from {options.upgrade}", 2 * len(cast.gateways)
            yield tally


def a_scene(options: argparse.Namespace, seed: int, seconds: float) -> Scene:
    scene = Scene(seed, seconds, options.rate, frozenset(map(Fate, options.forgive)), thinks=options.thinking)
    if options.lasting:
        scene = replace(scene, pace=Pace(lasts_s=(options.lasting, options.lasting)))
    elif options.only:
        scene = replace(scene, pace=ONLY)
    return replace(scene, kinds=tuple(map(Kind, options.only))) if options.only else scene


async def run(options: argparse.Namespace) -> int:
    """How many of the runs broke a promise."""
    if options.upgrade and not has_commit(options.upgrade):
        print(f"skipped: the commit {options.upgrade} is not in this clone; fetch it (git fetch --unshallow)")
        return 0
    runs = (
        upgraded(options)
        if options.upgrade
        else rolled(options)
        if options.roll
        else for_long(options)
        if options.minutes
        else by_seeds(options)
    )
    tallies = []
    async for tally in runs:
        tallies.append(tally)
        print("\n".join(tally.lines()), flush=True)
    print("\n".join(summed_up(tallies)))
    return sum(bool(tally.faults()) for tally in tallies)


def summed_up(tallies: list[Tally]) -> Iterator[str]:
    """All runs in three lines."""
    requested, resumed = sum(len(tally.ended) for tally in tallies), sum(tally.reported.resumed for tally in tallies)
    broken = [tally.name for tally in tallies if tally.faults()]
    yield f"{len(tallies)} runs, {sum(tally.deeds for tally in tallies)} deeds, {requested} requests, {resumed} resumed"
    yield f"promises were broken in: {', '.join(broken)}" if broken else "no promise was broken"


def main() -> int:
    """What the command line asks for."""
    requested = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    requested.add_argument("--seeds", type=int, nargs="+", help="these alone")
    requested.add_argument("--seconds", type=float, default=60.0, help="of each seed (60)")
    requested.add_argument("--minutes", type=float, help="one long run instead, in scenes of four minutes")
    requested.add_argument("--roll", action="store_true", help="roll all pods and gateways instead")
    requested.add_argument("--upgrade", metavar="COMMIT", help="roll all gateways from that version to this, and back")
    requested.add_argument("--rate", type=float, default=4.0, help="requests a second (4); 1 takes about half a core")
    requested.add_argument(
        "--thinking", action=argparse.BooleanOptionalAction, default=True, help="ask for thoughts, calls, schemas too"
    )
    requested.add_argument(
        "--only", nargs="+", choices=[*Kind], metavar="DEED", help="nothing but these, one upon the other"
    )
    requested.add_argument(
        "--lasting", type=float, metavar="SECONDS", help="of each deed, so that findings are raised: 45 (1 to 8)"
    )
    requested.add_argument(
        "--forgive", nargs="*", default=[], choices=[*Fate], help="fates that are no fault this time"
    )
    return bool(asyncio.run(run(requested.parse_args())))


if __name__ == "__main__":
    raise SystemExit(main())
