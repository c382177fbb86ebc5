"""`python -m bench.edge`: a gateway with one local model and a provider behind a backhaul that is cut and restored.

The rows: how long answers take in the five seconds after a cut, how soon an answer is escalated again, and the share
of requests that leaves, under its cap, at a base load and at ten times that. Everything runs on this machine; a load
beside it makes the seconds longer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
    """Print the rows of the cut."""
    async with a_provider_scene(folder, {"allowed": ALLOWED}, threshold=NEVER) as scene:
        before = [await timed(scene) for _ in range(10)]
        sending = asyncio.create_task(offered(BASE_RATE, AFTER_CUT_S, lambda: timed(scene)))
        await scene.openai.stop()
        after = await sending
        began_s = time.monotonic()
        await scene.openai.start()
        while not (await timed(scene))[2]:
            pass
        resumed_s = time.monotonic() - began_s
    print(
        f"before the cut: {sum(left for _, _, left in before)} of {len(before)} escalated, p50 {median(before):.3f} s"
    )
    failed = sum(status != 200 for _, status, _ in after)
    longest = max(seconds for seconds, _, _ in after)
    print(f"after the cut: {len(after)} requests, {failed} failed, p50 {median(after):.3f} s, longest {longest:.3f} s")
    print(f"restored: escalated again after {resumed_s:.3f} s")


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
        await cut_and_restore(folder)
        await shares(folder)


asyncio.run(main())
