"""`python -m bench.edge`: a gateway with one local model and a provider behind a backhaul that is cut and restored.

The rows, for a cut that closes connections and one that closes nothing: how long answers take in the five seconds
after it, and how soon an answer is escalated again; then the share of requests that leaves, under its cap, at a base
load and at ten times that. Everything runs on this machine; a load beside it makes the seconds longer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.gateway.hostile_links import a_link
from tests.gateway.kv_index.redis_servers import free_port
from tests.scenarios.provider_scene import ALLOWED, ProviderScene, a_provider_scene, chat_body

NEVER = 0.99
"""Threshold of a margin that no simulated answer reaches."""

AFTER_CUT_S = 5.0
CAP = 0.2
BASE_RATE, FACTOR, LOAD_S = 2.0, 10, 15.0


async def timed(scene: ProviderScene, tenant: str = "allowed") -> tuple[float, int, bool]:
    """Return the seconds of one answer, its status, and whether its request left the fleet."""
    began_s = time.monotonic()
    status, _, head = await scene.post(chat_body(model="auto", stream=True), tenant)
    return time.monotonic() - began_s, status, "x-hearth-providers" in head


async def offered(rate: float, seconds: float, send: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Send at a rate, open loop. Returns the results."""
    tasks: list[asyncio.Task[Any]] = []
    began_s = time.monotonic()
    for number in range(round(rate * seconds)):
        await asyncio.sleep(max(0.0, began_s + number / rate - time.monotonic()))
        tasks.append(asyncio.create_task(send()))  # type: ignore[arg-type]
    return list(await asyncio.gather(*tasks))


async def cut_and_restore(folder: Path) -> None:
    """Print the rows of a cut that closes every connection."""
    async with a_provider_scene(folder, {"allowed": ALLOWED}, threshold=NEVER) as scene:
        await _rows_of_cut("closed", scene, scene.openai.stop, scene.openai.start)


async def swallow_and_restore(folder: Path) -> None:
    """Print the rows of a cut that closes nothing: a link that accepts and reads on, and forwards no byte."""
    port = free_port()
    async with a_link(port) as link:
        endpoint = {"base_url": f"http://127.0.0.1:{link.port}", "quirks": {"probe_path": "/models"}}
        async with a_provider_scene(folder, {"allowed": ALLOWED}, threshold=NEVER, endpoint=endpoint) as scene:
            await scene.openai.stop()
            scene.openai.port = port
            await scene.openai.start()

            async def freeze(*, frozen: bool) -> None:
                link.is_frozen = frozen

            await _rows_of_cut(
                "silently", scene, lambda: freeze(frozen=True), lambda: freeze(frozen=False), in_flight=4
            )


async def _rows_of_cut(
    how: str,
    scene: ProviderScene,
    cut: Callable[[], Awaitable[None]],
    restore: Callable[[], Awaitable[None]],
    *,
    in_flight: int = 0,
) -> None:
    """`in_flight`: requests that are sent at the moment of the cut."""
    before = [await timed(scene) for _ in range(10)]
    await cut()
    at_cut = [asyncio.create_task(timed(scene)) for _ in range(in_flight)]
    after = await offered(BASE_RATE, AFTER_CUT_S, lambda: timed(scene)) + list(await asyncio.gather(*at_cut))
    began_s = time.monotonic()
    await restore()
    while not (await timed(scene))[2]:
        pass
    resumed_s = time.monotonic() - began_s
    print(f"cut {how}")
    print(f"  before: {sum(left for _, _, left in before)} of {len(before)} escalated, p50 {median(before):.3f} s")
    failed = sum(status != 200 for _, status, _ in after)
    max_s = max(seconds for seconds, _, _ in after)
    print(f"  after: {len(after)} requests, {failed} failed, p50 {median(after):.3f} s, max {max_s:.3f} s")
    print(f"  restored: escalated again after {resumed_s:.3f} s")


async def shares(folder: Path) -> None:
    """Print the share that leaves, at the base load and at ten times that."""
    for rate in (BASE_RATE, BASE_RATE * FACTOR):
        tenants = {"allowed": ALLOWED | {"providers_max_share": CAP}}
        place = folder / f"{rate:g}"
        place.mkdir()
        async with a_provider_scene(place, tenants, threshold=NEVER) as scene:
            results = await offered(rate, LOAD_S, lambda: timed(scene))
        share = sum(left for _, _, left in results) / len(results)
        failed = sum(status != 200 for _, status, _ in results)
        print(f"{rate:g} requests/s, cap {CAP}: share {share:.3f} of {len(results)}, {failed} failed")


def median(results: list[tuple[float, int, bool]]) -> float:
    """Return the median seconds."""
    return sorted(seconds for seconds, _, _ in results)[len(results) // 2]


async def main() -> None:
    """Run all rows."""
    with TemporaryDirectory(prefix="hearth-edge-") as held:
        folder = Path(held)
        for number, cut in enumerate((cut_and_restore, swallow_and_restore)):
            place = folder / f"cut-{number}"
            place.mkdir()
            await cut(place)
        await shares(folder)


asyncio.run(main())
