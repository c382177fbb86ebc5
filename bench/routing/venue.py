"""One contender with eight fresh pods and a client of its own, all separate programs; several venues play at once.

Whatever disturbs the machine then disturbs all contenders alike.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import msgspec

from bench.routing.contenders import Contender, Program
from bench.routing.loads import PODS, Load
from bench.routing.playing import Job, Played
from bench.routing.redis import VenueRedis
from bench.routing.rows import Row, row_of
from simulator.children import ChildFailed
from simulator.processor import used_s
from simulator.profile import Profile
from simulator.records import Record, Replay
from simulator.report import report_on
from simulator.spread import Spread, spread_of
from simulator.stage import make_folder, start_pods

READY_S = 60.0
ASK_AGAIN_S = 0.2
BEFORE_START_S = 3.0
"""From when all are ready to the first request: a client reads its trace in this time."""
END_S = 15.0


@dataclass(frozen=True, slots=True)
class Run:
    """One contender, once, on one load."""

    row: Row
    records: tuple[Record, ...]
    late_s: Spread
    gateway_cpu_s: float
    pods_cpu_s: float

    def text(self) -> str:
        """What is worth knowing beside the figures."""
        failed = {record.failure for record in self.records if record.failure}
        summary = (
            f"gateway {self.gateway_cpu_s:.1f} s CPU, pods {self.pods_cpu_s:.1f}, late p99 {self.late_s.p99:.2f} s"
        )
        return f"{summary}; failures: {', '.join(sorted(failed))}" if failed else summary


class Venue:
    """Ready to be played on."""

    def __init__(self, contender: Contender, programs: Sequence[Program], engine: Profile, folder: Path) -> None:
        self.contender = contender
        self.urls = [program.url for program in programs]
        self.folder = folder
        self._engine = engine
        self.gateway_pids: list[int] = []
        self.pod_pids: list[int] = []
        self.pod_urls: list[str] = []
        self.redis: VenueRedis | None = None

    async def play(self, load: Load, seed: int, requests: int | None, start_at_s: float) -> Run:
        """Play a load with a client program. Raises ChildFailed where that fails."""
        job, text = self.folder / "job.json", self.folder / "records.json"
        job.write_bytes(
            msgspec.json.encode(Job(load.name, requests, seed, self._engine.time_scale, self.urls, start_at_s))
        )
        gateways = _with_children(self.gateway_pids)
        before = used_s(gateways) or 0.0, used_s(self.pod_pids) or 0.0
        with (self.folder / "client.log").open("wb") as log:
            client = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.routing.playing", str(job), str(text), stdout=log, stderr=log
            )
            async with _ended(client):
                if await client.wait():
                    raise ChildFailed(f"the client of {self.contender.name} failed: see {self.folder / 'client.log'}")
        played = msgspec.json.decode(text.read_bytes(), type=Played)
        length_s = max(one.arrived_s + (one.duration_s or 0.0) for one in played.records)
        replay = Replay(self.contender.name, load.name, ("all",), tuple(played.records), length_s, 0.0, is_live=True)
        row = replace(row_of(self.contender.name, report_on(replay, self._engine)), imbalance=await self._imbalance())
        gateway_s, pods_s = (used_s(gateways) or 0.0) - before[0], (used_s(self.pod_pids) or 0.0) - before[1]
        return Run(row, tuple(played.records), spread_of(played.late_s), gateway_s, pods_s)

    async def _imbalance(self) -> float:
        """The most tokens computed by one pod, by the mean: from what pods count themselves, for rivals do not tell."""
        computed = []
        async with aiohttp.ClientSession() as client:
            for url in self.pod_urls:
                async with client.get(f"{url}/metrics") as answer:
                    lines = (await answer.text()).splitlines()
                computed.append(_sum(lines, "prefix_cache_queries_total") - _sum(lines, "prefix_cache_hits_total"))
        return max(computed) * len(computed) / max(sum(computed), 1.0)


@asynccontextmanager
async def open_venue(contender: Contender, engine: Profile, folder: Path) -> AsyncIterator[Venue]:
    """Fresh pods, a gateway that has found all of them. Raises ChildFailed."""
    make_folder(folder)
    async with AsyncExitStack() as stack:
        logs = [folder / f"pod-{number}.log" for number in range(PODS)]
        pods = await start_pods(stack, logs, engine)
        pod_urls = [url for _, url in pods]
        redis = VenueRedis(folder)
        if contender.redis:
            stack.push_async_callback(redis.kill)
            await redis.start()
        programs = contender.programs(pod_urls, folder, redis.url)
        venue = Venue(contender, programs, engine, folder)
        venue.redis = redis
        venue.pod_urls = pod_urls
        venue.pod_pids = [child.pid for child, _ in pods]
        for number, program in enumerate(programs):
            pid = await stack.enter_async_context(running_program(program, folder / f"gateway-{number}.log"))
            venue.gateway_pids.append(pid)
        for program in programs:
            await all_found(contender.name, program, PODS)
        yield venue


@asynccontextmanager
async def running_program(program: Program, log: Path) -> AsyncIterator[int]:
    """Its process id, until the block ends."""
    with log.open("wb") as output:
        child = await asyncio.create_subprocess_exec(
            *program.command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    async with _ended(child):
        yield child.pid


@asynccontextmanager
async def _ended(child: asyncio.subprocess.Process) -> AsyncIterator[None]:
    """See to it that a program of ours has ended, at the latest when the block does."""
    try:
        yield
    finally:
        if child.returncode is None:
            child.terminate()
            try:
                async with asyncio.timeout(END_S):
                    await child.wait()
            except TimeoutError:
                child.kill()
                await child.wait()


async def all_found(name: str, program: Program, pods: int) -> None:
    """Until a gateway says that all pods are usable. Raises ChildFailed."""
    ready = program.ready
    give_up_s = time.monotonic() + READY_S
    async with aiohttp.ClientSession() as client:
        while time.monotonic() < give_up_s:
            try:
                async with client.get(ready.url) as answer:
                    if answer.status == 200 and ready.count(await answer.json()) == pods:
                        return
            except (aiohttp.ClientError, KeyError, ValueError):
                pass
            await asyncio.sleep(ASK_AGAIN_S)
    raise ChildFailed(f"{name} did not find its pods within {READY_S:.0f} s")


def _with_children(pids: Sequence[int]) -> list[int]:
    """These programs and all that they have started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(text.rpartition(")")[2].split()[1])
    family = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sorted(family)


def _sum(lines: Sequence[str], name: str) -> float:
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}"))
