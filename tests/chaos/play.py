"""One scene: clients ask at a steady rate while deeds are done; afterwards everything must be at rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random

from tests.chaos.cast import Cast, key_of
from tests.chaos.clients import Clients, Ended, Fate
from tests.chaos.deeds import USUAL, Kind, Pace, draw_deeds
from tests.chaos.doing import Doing, Say
from tests.chaos.findings import FindingWatch
from tests.chaos.programs import pause
from tests.chaos.report import Tally
from tests.chaos.reported import Told, read_told
from tests.chaos.requested import draw_request
from tests.chaos.rest import await_rest
from tests.chaos.watching import Watching


@dataclass(frozen=True, slots=True)
class Scene:
    """`rate`: requests a second."""

    seed: int
    seconds: float
    rate: float
    forgives: frozenset[Fate] = frozenset()
    kinds: Sequence[Kind] = tuple(Kind)
    pace: Pace = USUAL
    thinks: bool = False
    """Thoughts, calls of tools and structured output are asked for too."""


async def play(cast: Cast, scene: Scene, log_event: Say) -> Tally:
    """Deeds drawn from the scene's seed."""
    crowd = len(cast.pods), len(cast.gateways)
    deeds = draw_deeds(scene.seed, scene.seconds, *crowd, kinds=scene.kinds, pace=scene.pace)
    doing = Doing(cast, log_event)
    tally = await play_with(cast, scene, doing, lambda: doing.all(deeds))
    tally.deeds = len(deeds)
    return tally


async def play_with(cast: Cast, scene: Scene, doing: Doing, do: Callable[[], Coroutine[object, object, None]]) -> Tally:
    """The scene with what `do` does; clients ask for its seconds, or until that has been done where it takes longer."""
    clients, tally = Clients(cast.front.url, cast.undisturbed.url, key_of), Tally(f"seed {scene.seed}")
    tally.forgives = scene.forgives
    watching, told_before = Watching(cast, lambda: doing.suffering), _told(cast)
    findings = FindingWatch(cast)
    watch, find = asyncio.create_task(watching.watch()), asyncio.create_task(findings.watch())
    try:
        done = asyncio.create_task(do())
        await _ask(clients, tally.ended, scene, done)
        await done
    finally:
        watch.cancel()
        await clients.close()
    tally.lost, tally.most = doing.lost, watching.most
    tally.asked_again, tally.statuses = clients.asked_again, clients.statuses
    left = await await_rest(cast)
    await findings.settle()
    find.cancel()
    tally.faults_seen = [*doing.faults, *watching.faults.values(), *left, *findings.faults(doing.done)]
    tally.findings = [*findings.lines(doing.done)]
    tally.reported = _told(cast).since(told_before)
    return tally


def _told(cast: Cast) -> Told:
    return read_told(gateway.program.log for gateway in cast.gateways)


async def _ask(clients: Clients, ended: list[Ended], scene: Scene, done: asyncio.Future[None]) -> None:
    """Returns when the last has its answer."""
    clock, draw = asyncio.get_running_loop().time, Random(scene.seed)
    until_s, number = clock() + scene.seconds, 0

    async def one(number: int) -> None:
        ended.append(await clients.ask(draw_request(number, Random(f"{scene.seed} {number}"), thinks=scene.thinks)))

    async with asyncio.TaskGroup() as group:
        while clock() < until_s or not done.done():
            group.create_task(one(number))
            number += 1
            await pause(draw.expovariate(scene.rate))
