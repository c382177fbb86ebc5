"""`make demo-dashboards`: simulated pods, a gateway with three tenants, and a Prometheus with our rules, on loopback.

Two tenants repeat their prompts, the third sends bursts that the pods cannot serve in time. All ends with Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from contextlib import suppress
from pathlib import Path

from simulator.profile import Profile
from tests.deploy.expressions import RULES
from tests.deploy.prometheus import prometheus
from tests.deploy.scene import Scene, scene

PROFILE = Profile(prefill_tokens_per_s=8_000.0, max_num_seqs=32)

CALM_RATE, BURST_RATE = 2.0, 20.0
"""Requests a second."""

PERIOD_S, BURST_S = 120.0, 30.0


async def show(seconds: float | None) -> None:
    """Keep everything up for so many seconds, or until interrupted."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            scene(Path(folder) / "scene", PROFILE, pods=3) as opened,
            prometheus(Path(folder) / "prometheus", [opened.metrics_url.removeprefix("http://")], [RULES]) as queries,
        ):
            print(f"Operators' page:  {opened.admin_url}/")
            print(f"Prometheus:       {queries.url}/graph    alerts: {queries.url}/alerts")
            print("Dashboards:       import deploy/grafana/*.json into a Grafana with this Prometheus")
            print("Until Ctrl-C.", flush=True)
            async with asyncio.TaskGroup() as group:
                load = group.create_task(_load(opened, group))
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(10**9 if seconds is None else seconds)
                load.cancel()


async def _load(opened: Scene, group: asyncio.TaskGroup) -> None:
    draw, loop = random.Random(1), asyncio.get_running_loop()
    began_s = loop.time()
    while True:
        bursts = (loop.time() - began_s) % PERIOD_S > PERIOD_S - BURST_S
        await asyncio.sleep(draw.expovariate(BURST_RATE if bursts else CALM_RATE))
        if bursts and draw.random() < 0.8:
            task = opened.ask("initech", words=900, prefix=str(draw.random()))
        else:
            tenant = draw.choice(("acme", "globex"))
            task = opened.ask(tenant, words=600, prefix=f"{tenant} assistant {draw.randrange(4)}")
        group.create_task(task)


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.deploy.demo", description="Dashboards on demo traffic.")
    parser.add_argument("--seconds", type=float, help="end by itself after so long")
    with suppress(KeyboardInterrupt):
        asyncio.run(show(parser.parse_args().seconds))


if __name__ == "__main__":
    main()
