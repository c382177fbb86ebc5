"""Plays several gateways live, all on this machine: `hearth serve` once, twice and four times, and with four processes,
with a Redis that is healthy, dies, stalls or is not there, and with one gateway that receives most requests. Without
Redis, gateways are played that know nothing of each other, and gateways that are configured with their number.

Engines are slowed down, and objectives stretched as much, so that clients, gateways, engines and Redis together leave a
part of the machine unused. A row in which they do not is shown, and does not count.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from bench.routing.redis import VenueRedis, redis_binary
from bench.routing.venue import all_found, running_program
from bench.slo.contenders import hearth_program, key_headers
from bench.slo.figures import Figures
from bench.slo.gateways import Gateways, Link, fault_of
from bench.slo.live import Address
from bench.slo.reading import load_scenario
from bench.slo.rows import Block
from bench.slo.scenario import Scenario
from bench.slo.stand import LIVE_ENGINES, play_and_sum
from bench.slo.targets import MANY_GOLD, MANY_GOODPUT, MANY_SILVER
from bench.slo.traffic import draw_traffic
from bench.target import Target
from simulator.processor import Meter
from simulator.stage import make_folder, start_pods

SLOWED = 2.5
"""Engine seconds last so many real ones, and so do objectives."""

MAX_BUSY = 0.8
"""Of the machine: a busier run shows the machine, not the gateways."""

BEST_PER_ENGINE = 8.0
"""Best load of `chat`, in requests a second of engine time for each engine: what `--only virtual` finds for four."""

LIVE_REQUESTS = 250
"""Of the counted tier: at twice and five times the best load they take 98 s, of which a fault is 38."""


@dataclass(frozen=True, slots=True)
class LiveLayout:
    """Programs of one row: gateways, each of so many processes."""

    gateways: Gateways
    processes: int = 1

    @property
    def name(self) -> str:
        """Name of its row in the table."""
        if self.processes == 1:
            return self.gateways.name
        return f"{self.processes} processes{self.gateways.conditions}"

    @property
    def programs(self) -> int:
        """How many programs receive requests."""
        return self.gateways.count * self.processes

    @property
    def shares_always(self) -> bool:
        """Whether all of them share throughout: processes of one host do so without Redis."""
        return self.gateways.count == 1 or self.gateways.link is Link.REDIS


LIVE_ONE = LiveLayout(Gateways(link=Link.NONE))

LIVE_LINKS = (Link.REDIS, Link.DIES, Link.STALLS, Link.NONE)
"""A link that fails in one direction only is played in virtual time."""

LIVE_LAYOUTS = (
    LIVE_ONE,
    *(
        LiveLayout(gateways)
        for count in (2, 4)
        for gateways in (
            Gateways(count),
            Gateways(count, first_share=0.8),
            *(Gateways(count, one) for one in (*LIVE_LINKS[1:], Link.COUNTED)),
        )
    ),
    *(LiveLayout(Gateways(link=link), processes=4) for link in LIVE_LINKS),
)


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """A scenario, its rows, and the share of the machine that each took."""

    block: Block
    busy: dict[str, float]

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self.busy.items())
        return f"{self.block}\nof the machine: {shares}"

    def is_counted(self, name: str) -> bool:
        """Whether the machine was not the bottleneck."""
        return self.busy[name] < MAX_BUSY

    def targets(self) -> Iterator[Target]:
        """What is wanted of the rows that count, beside one gateway: gold where Redis fails, nothing without it."""
        one, here = self.block.figures[LIVE_ONE.name], self.block.scenario.name
        for layout in LIVE_LAYOUTS:
            many, name = self.block.figures.get(layout.name), layout.name
            if layout is LIVE_ONE or many is None or not (self.is_counted(name) and self.is_counted(LIVE_ONE.name)):
                continue
            if layout.shares_always or layout.gateways.link is not Link.NONE:
                found = many.tiers["gold"].attainment
                yield Target(f"{here}, {name}, gold attainment", MANY_GOLD, found, is_minimum=True)
            if layout.shares_always:
                silver, found = one.tiers["silver"].attainment - MANY_SILVER, many.tiers["silver"].attainment
                yield Target(f"{here}, {name}, silver attainment (one - {MANY_SILVER})", silver, found, is_minimum=True)
                wanted = MANY_GOODPUT * one.met_per_s
                yield Target(f"{here}, {name}, met/s (one x {MANY_GOODPUT})", wanted, many.met_per_s, is_minimum=True)


def slowed(scenario: Scenario, times: float) -> Scenario:
    """The same scenario on engines that need `times` as long for everything, with objectives as much longer."""
    profile = scenario.profile
    return replace(
        scenario,
        profile=replace(
            profile,
            prefill_tokens_per_s=profile.prefill_tokens_per_s / times,
            step_base_s=profile.step_base_s * times,
            step_per_sequence_s=profile.step_per_sequence_s * times,
            step_per_kv_token_s=profile.step_per_kv_token_s * times,
        ),
        tiers={
            name: replace(
                tier, ttft_s=tier.ttft_s * times, tpot_s=tier.tpot_s * times, max_queue_s=tier.max_queue_s * times
            )
            for name, tier in scenario.tiers.items()
        },
    )


def play_live_gateways(
    names: Sequence[str],
    seed: int,
    requests: int = LIVE_REQUESTS,
    layouts: Sequence[LiveLayout] = LIVE_LAYOUTS,
) -> list[LiveBlock]:
    """Play the layouts in the named scenarios, one after the other, until so many requests of the counted tier have
    come. Raises ChildFailed.
    """
    if redis_binary() is None:
        print("several gateways live are left out: no redis-server", file=sys.stderr)
        return []
    blocks = []
    for name in names:
        scenario = slowed(load_scenario(name).lasting(requests), SLOWED)
        scenario = replace(scenario, name=f"{name}, live", engines=LIVE_ENGINES)
        load = scenario.load * BEST_PER_ENGINE * LIVE_ENGINES / SLOWED
        figures, busy = dict[str, Figures](), dict[str, float]()
        for layout in layouts:
            with TemporaryDirectory() as folder:
                played = uvloop.run(_play(layout, scenario, load, seed, Path(folder)))
            figures[layout.name], busy[layout.name] = played
            met = ", ".join(f"{tier} {one.attainment:.3f}" for tier, one in played[0].tiers.items())
            print(f"{scenario.name}, {layout.name}: {met}, {played[1]:.0%} of the machine", file=sys.stderr, flush=True)
        blocks.append(LiveBlock(Block(scenario, load, None, figures), busy))
        print(f"{blocks[-1]}\n", file=sys.stderr, flush=True)
    return blocks


async def _play(layout: LiveLayout, scenario: Scenario, load: float, seed: int, folder: Path) -> tuple[Figures, float]:
    """One run, and the share of the machine that was used meanwhile. Raises ChildFailed."""
    make_folder(folder)
    gateways = layout.gateways
    async with AsyncExitStack() as stack:
        pods = await start_pods(
            stack, [folder / f"pod-{number}.log" for number in range(scenario.engines)], scenario.profile
        )
        pids, arguments = [child.pid for child, _ in pods], ["--processes", str(layout.processes)]
        redis = VenueRedis(folder)
        if gateways.has_redis:
            stack.push_async_callback(redis.kill)
            await redis.start()
            arguments += ["--redis", redis.url]
        elif gateways.link is Link.COUNTED:
            arguments += ["--gateways", str(gateways.count)]
        urls = []
        for number in range(gateways.count):
            own = folder / f"gateway-{number}"
            own.mkdir()
            program = hearth_program(scenario, [url for _, url in pods], own, arguments)
            pids.append(await stack.enter_async_context(running_program(program, own / "gateway.log")))
            await all_found(layout.name, program, len(pods))
            urls.append(program.url)
        meter = Meter(pids)
        address = Address(urls[0], key_headers, further=tuple(urls[1:]), gateways=gateways)
        async with asyncio.TaskGroup() as group:
            length_s = draw_traffic(scenario, load, seed)[-1].at_s
            group.create_task(_break_link(redis, gateways.link, *fault_of(length_s)), name="fault of the link")
            figures = await play_and_sum(address, scenario, load, seed)
        busy = meter.busy()
        return figures, 1.0 if busy is None else busy


async def _break_link(redis: VenueRedis, link: Link, begins_s: float, ends_s: float) -> None:
    """Let Redis die or stall where the link is one that does, and bring it back. Raises TimeoutError."""
    if link not in (Link.DIES, Link.STALLS):
        return
    await asyncio.sleep(begins_s)
    if link is Link.DIES:
        await redis.kill()
    else:
        redis.stall()
    await asyncio.sleep(ends_s - begins_s)
    if link is Link.DIES:
        await redis.start()
    else:
        redis.resume()
