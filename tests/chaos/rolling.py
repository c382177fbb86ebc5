"""All pods and all gateways rolled under load, one by one, as an operator or Kubernetes does it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.cast import Cast, Gateway
from tests.chaos.doing import Doing
from tests.chaos.programs import Program, pause, read_json

EMPTY_S = 60.0
"""So long a drained pod may take to finish what it has; the longest stream of a run takes a few seconds."""

SEEN_S = 6.0
"""A pod that is back has been probed by everybody by then, and the next one may go."""


BESIDE_S = 5.0
"""Two versions run beside each other at least so long between two steps of an upgrade."""


async def roll(cast: Cast, doing: Doing) -> None:
    """Each pod drained, restarted and taken back; then each gateway."""
    for pod, wire in zip(cast.pods, cast.pod_wires, strict=True):
        await _roll_pod(cast, doing, pod, wire.url)
    for gateway in cast.gateways:
        await _roll_gateway(cast, doing, gateway)


async def upgrade(cast: Cast, doing: Doing, *, before: Path, now: Path) -> None:
    """Each gateway from the version before to this one, and then back: both share Redis, pods and ports meanwhile."""
    for version in (now, before):
        for gateway in cast.gateways:
            gateway.program.root = version
            await _roll_gateway(cast, doing, gateway)
            await pause(BESIDE_S)


async def _roll_pod(cast: Cast, doing: Doing, pod: Program, url: str) -> None:
    await _order(cast, "drain", url)
    try:
        async with asyncio.timeout(EMPTY_S):
            while await _running(cast, url):
                await pause(0.2)
    except TimeoutError:
        doing.faults.append(f"{pod.name} was not empty {EMPTY_S:.0f} s after it was drained")
    await pod.stop()
    await pod.start()
    await pod.ready(cast.session)
    await _order(cast, "undrain", url)
    await pause(SEEN_S)


async def _order(cast: Cast, what: str, url: str) -> None:
    for gateway in cast.gateways:
        async with cast.session.post(f"{gateway.admin}/pods/{what}", json={"pod": url}) as answer:
            assert answer.status == 200, await answer.text()


async def _running(cast: Cast, url: str) -> int:
    fleets = [await read_json(cast.session, f"{gateway.admin}/fleet") for gateway in cast.gateways]
    pods = (pod for fleet in fleets for pod in fleet["pods"] if pod["url"] == url)
    return sum(engine["own_load"]["running"] for pod in pods for engine in pod["engines"])


async def _roll_gateway(cast: Cast, doing: Doing, gateway: Gateway) -> None:
    """Nothing may be lost, so it does not count as lost: no client may have to ask anew."""
    with doing.to(gateway.name):
        if not await gateway.program.stop():
            doing.faults.append(f"{gateway.name} did not end in order when told to")
        await gateway.program.start()
        await gateway.program.ready(cast.session)
