"""Plays several gateways live, all on this machine: `hearth serve` once, twice and four times, and with four processes.

Engines are slowed down, and objectives stretched as much, so that clients, gateways, engines and Redis together leave a
part of the machine unused. A row in which they do not is shown, and does not count.
"""

from __future__ import annotations

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
from bench.slo.live import Address
from bench.slo.reading import load_scenario
from bench.slo.rows import Block
from bench.slo.scenario import Scenario
from bench.slo.stand import LIVE_ENGINES, play_and_sum
from bench.slo.targets import MANY_GOLD, MANY_GOODPUT, MANY_SILVER
from bench.target import Target
from simulator.processor import Meter
from simulator.stage import make_folder, start_pods

SLOWED = 2.0
"""Engine seconds last so many real ones, and so do objectives."""

MAX_BUSY = 0.8
"""Of the machine: a busier run shows the machine, not the gateways."""

BEST_PER_ENGINE = 8.0
"""Best load of `chat`, in requests a second of engine time for each engine: what `--only virtual` finds for four."""

LIVE_REQUESTS = 200
"""Of the counted tier."""


@dataclass(frozen=True, slots=True)
class LiveLayout:
    """Programs of one row, which share a Redis where there are several."""

    name: str
    copies: int = 1
    processes: int = 1


LIVE_ONE = LiveLayout("hearth")

LIVE_LAYOUTS = (
    LIVE_ONE,
    LiveLayout("2 gateways", copies=2),
    LiveLayout("4 gateways", copies=4),
    LiveLayout("4 processes", processes=4),
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
        """What is wanted of the rows that count, beside one gateway."""
        one, here = self.block.figures[LIVE_ONE.name], self.block.scenario.name
        for name, many in self.block.figures.items():
            if name == LIVE_ONE.name or not (self.is_counted(name) and self.is_counted(LIVE_ONE.name)):
                continue
            yield Target(f"{here}, {name}, gold attainment", MANY_GOLD, many.tiers["gold"].attainment, is_minimum=True)
            silver = one.tiers["silver"].attainment - MANY_SILVER
            found = many.tiers["silver"].attainment
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


def play_live_gateways(names: Sequence[str], seed: int, requests: int = LIVE_REQUESTS) -> list[LiveBlock]:
    """Play every layout in the named scenarios, one after the other, until so many requests of the counted tier have
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
        for layout in LIVE_LAYOUTS:
            with TemporaryDirectory() as folder:
                played = uvloop.run(_play(layout, scenario, load, seed, Path(folder)))
            figures[layout.name], busy[layout.name] = played
        blocks.append(LiveBlock(Block(scenario, load, None, figures), busy))
        print(f"{blocks[-1]}\n", file=sys.stderr, flush=True)
    return blocks


async def _play(layout: LiveLayout, scenario: Scenario, load: float, seed: int, folder: Path) -> tuple[Figures, float]:
    """One run, and the share of the machine that was used meanwhile. Raises ChildFailed."""
    make_folder(folder)
    async with AsyncExitStack() as stack:
        pods = await start_pods(
            stack, [folder / f"pod-{number}.log" for number in range(scenario.engines)], scenario.profile
        )
        pids, arguments = [child.pid for child, _ in pods], ["--processes", str(layout.processes)]
        if layout.copies > 1:
            redis = VenueRedis(folder)
            stack.push_async_callback(redis.kill)
            await redis.start()
            arguments += ["--redis", redis.url]
        urls = []
        for number in range(layout.copies):
            own = folder / f"gateway-{number}"
            own.mkdir()
            program = hearth_program(scenario, [url for _, url in pods], own, arguments)
            pids.append(await stack.enter_async_context(running_program(program, own / "gateway.log")))
            await all_found(layout.name, program, len(pods))
            urls.append(program.url)
        meter = Meter(pids)
        address = Address(urls[0], key_headers, further=tuple(urls[1:]))
        figures = await play_and_sum(address, scenario, load, seed)
        busy = meter.busy()
        return figures, 1.0 if busy is None else busy
