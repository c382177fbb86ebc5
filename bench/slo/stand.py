"""Puts a contender in front of fresh simulated pods and plays a scenario on it over HTTP."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from bench.routing.venue import all_found, running_program
from bench.slo.contenders import Contender
from bench.slo.figures import Figures, figures_of
from bench.slo.live import Address, play_live
from bench.slo.scenario import Scenario
from bench.slo.traffic import draw_traffic
from simulator.stage import make_folder, start_pods


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
    """One run against whoever listens there."""
    traffic = draw_traffic(scenario, load, seed)
    return figures_of(scenario, await play_live(address, traffic, seed), traffic[-1].at_s, None)
