"""`python -m tests.deploy.record` records what a gateway exports under overload and in calm, for promtool's tests.

The pods are simulated, the gateway and its scrapes are real. It is scraped once a second and replayed at one scrape in
thirty: shares, quantiles and states are those of the recording, and rates are a thirtieth of it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from simulator.profile import Profile
from tests.deploy.expressions import rules, selectors
from tests.deploy.scene import TENANTS, Scene, scene

FOLDER = Path(__file__).parent / "rules"

REPLAY_S = 30

PROFILE = Profile(prefill_tokens_per_s=4_000.0, step_base_s=0.012, max_num_seqs=16, by_priority=False)

LOADS = {"overload": 25.0, "calm": 1.0}
"""Requests a second. A pod prefills some three of these prompts in a second."""

SAMPLES = 121
"""An hour, replayed."""

Series = dict[str, list[float | None]]


def wanted() -> set[str]:
    """Return the samples that the rules read."""
    return {name for rule in rules() for name, _ in selectors(rule["expr"]) if ":" not in name}


async def record(name: str) -> Series:
    """Run the load and scrape it."""
    series, names, draw = Series(), wanted(), random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        async with scene(Path(folder), PROFILE) as opened, asyncio.TaskGroup() as group:
            load = group.create_task(_load(opened, LOADS[name], draw, group))
            for at in range(SAMPLES):
                await asyncio.sleep(1.0)
                _add(series, await opened.metrics(), names, at)
            load.cancel()
    return series


async def _load(opened: Scene, rate: float, draw: random.Random, group: asyncio.TaskGroup) -> None:
    running = set[asyncio.Task[int]]()
    while True:
        await asyncio.sleep(draw.expovariate(rate))
        tenant = draw.choice([*TENANTS])
        task = group.create_task(opened.ask(tenant, words=1_200, prefix=str(draw.random()), max_tokens=8))
        running.add(task)
        task.add_done_callback(running.discard)


def _add(series: Series, page: str, names: set[str], at: int) -> None:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name not in names:
                continue
            labels = {**sample.labels, "instance": "gateway-1", "job": "hearth"}
            if "upstream" in labels:
                labels["upstream"] = "http://pod:" + labels["upstream"].rpartition(":")[2]
            key = sample.name + "{" + ",".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}"
            values = series.setdefault(key, [])
            values += [None] * (at - len(values))
            values.append(round(sample.value, 4))


def values_of(values: list[float | None]) -> str:
    """Return values in promtool's notation: what repeats is counted."""
    words: list[str] = []
    at = 0
    while at < len(values):
        value, end = values[at], at
        while end + 1 < len(values) and values[end + 1] == value:
            end += 1
        repeats = end - at
        words.append(f"_x{repeats + 1}" if value is None else f"{value:.10g}x{repeats}" if repeats else f"{value:.10g}")
        at = end + 1
    return " ".join(words)


def write(name: str, series: Series) -> None:
    """Write a recording, one series a line, sorted."""
    lines = [f"{key} {values_of(values)}\n" for key, values in sorted(series.items())]
    (FOLDER / f"{name}.txt").write_text("".join(lines), encoding="utf-8")


def read(name: str) -> list[dict[str, str]]:
    """Return a recording as promtool's input series."""
    lines = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("} ") for line in lines)
    return [{"series": f"{series}}}", "values": values} for series, _, values in pairs]


def main() -> None:
    """Record what is named, or both."""
    parser = argparse.ArgumentParser(prog="python -m tests.deploy.record")
    parser.add_argument("names", nargs="*", default=list(LOADS))
    given: Any = parser.parse_args()
    for name in given.names:
        write(name, asyncio.run(record(name)))


if __name__ == "__main__":
    main()
