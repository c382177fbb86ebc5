"""Puts a contender in front of fresh simulated pods and plays a scenario on it over HTTP."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from bench.routing.venue import all_found, running_program
from bench.slo.contenders import CONTENDERS, Contender
from bench.slo.figures import Figures, figures_of
from bench.slo.live import Address, play_live
from bench.slo.reading import load_scenario
from bench.slo.rows import Block
from bench.slo.scenario import Scenario
from bench.slo.traffic import draw_traffic
from simulator.stage import make_folder, start_pods

LIVE: Mapping[str, tuple[float, int]] = {"steady": (13.0, 60), "overload-2": (32.0, 200)}
"""What is played live: its load scaled to a few engines, until enough requests of the counted tier have come.
One machine plays clients, gateway and engines, in real time.
"""

LIVE_ENGINES = 2


def play_contenders(seed: int) -> list[Block]:
    """Play all available contenders, one after the other. Raises ChildFailed."""
    blocks = []
    for name, (load, requests) in LIVE.items():
        full_scenario = load_scenario(name).lasting(requests)
        scenario = replace(full_scenario, name=f"{name}, live", engines=LIVE_ENGINES)
        figures = {}
        for contender in (make() for make in CONTENDERS):
            if contender.lacks:
                print(f"{contender.name} is left out: {contender.lacks}", file=sys.stderr)
                continue
            with TemporaryDirectory() as folder:
                figures[contender.name] = uvloop.run(stand_and_play(contender, scenario, load, seed, Path(folder)))
        blocks.append(Block(scenario, load, None, figures))
        print(f"{blocks[-1]}\n", file=sys.stderr, flush=True)
    return blocks


async def stand_and_play(contender: Contender, scenario: Scenario, load: float, seed: int, folder: Path) -> Figures:
    """One run of one contender. Raises ChildFailed."""
    make_folder(folder)
    async with AsyncExitStack() as stack:
        logs = [folder / f"pod-{number}.log" for number in range(scenario.engines)]
        pods = [url for _, url in await start_pods(stack, logs, scenario.profile)]
        program = contender.program(scenario, pods, folder)
        await stack.enter_async_context(running_program(program, folder / "gateway.log"))
        await all_found(contender.name, program, len(pods))
        address = Address(program.url, lambda tenant: contender.headers_of(scenario, tenant))
        return await play_and_sum(address, scenario, load, seed)


async def play_and_sum(address: Address, scenario: Scenario, load: float, seed: int) -> Figures:
    """One run against the router at an address."""
    traffic = draw_traffic(scenario, load, seed)
    return figures_of(scenario, await play_live(address, traffic, seed, scenario.tiers), traffic[-1].at_s, None)
