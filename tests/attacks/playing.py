"""A real gateway under attack, and its memory as the kernel tells it."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile

import aiohttp

from tests.attacks.attacks import ATTACKS, MB, Attack
from tests.attacks.crowd import PATIENCE_S
from tests.attacks.silent_pod import silent_pod
from tests.gateway.running import Running, serving

SLACK_BYTES = 24 * MB
"""What a gateway takes for itself as it wakes: parsers, buffers, code not run before."""

MOST_SERIES = 40
"""New metric series in an attack: what it asks for is counted under a few names."""

WARMING = 3

PODS = 2

DESCRIPTORS_EACH = 2
"""Of an attacking connection: its own, and one to a pod or of a pod."""

DESCRIPTORS_BESIDE = 500


@dataclass(frozen=True, slots=True)
class Played:
    """What an attack took, and what it might have taken. `is_well`: a decent client was served in the middle of it."""

    name: str
    count: int
    took: int
    might: int
    series: int
    is_well: bool

    @property
    def is_kept(self) -> bool:
        return self.took <= self.might and self.series <= MOST_SERIES and self.is_well


def room_for(count: int) -> int:
    """As many connections as descriptors allow, at most `count`; root may allow itself more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count * DESCRIPTORS_EACH + DESCRIPTORS_BESIDE
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
        return count
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return (hard - DESCRIPTORS_BESIDE) // DESCRIPTORS_EACH


@dataclass(frozen=True, slots=True)
class Stage:
    """A gateway before two pods that say next to nothing."""

    gateway: Running
    session: aiohttp.ClientSession


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    """Waits are long, so that nobody is sent away before all are there. What is made once has been made."""
    with NamedTemporaryFile("w", suffix=".yaml") as config:
        config.write("timeouts: {request_header_s: 600, request_body_s: 600, downstream_write_s: 600}\n")
        config.flush()
        async with AsyncExitStack() as stack:
            pods = [await stack.enter_async_context(silent_pod()) for _ in range(PODS)]
            flags = (word for pod in pods for word in ("--pod", pod))
            gateway = await stack.enter_async_context(serving(*flags, "--config", config.name))
            for _ in pods:
                await gateway.until("pod_state_changed", state="ready")
            stage = Stage(gateway, await stack.enter_async_context(aiohttp.ClientSession()))
            for attack in ATTACKS:
                await attack.play(_port_of(stage), WARMING, partial(is_served, stage))
            yield stage


async def play(stage: Stage, attack: Attack, complete: int) -> Played:
    """Play one attack at its share of the whole count."""
    count = max(1, int(complete * attack.share))
    before, series, worst, wells = resident(stage), await series_of(stage), 0, list[bool]()

    async def look() -> None:
        nonlocal worst
        wells.append(await is_served(stage))
        worst = max(worst, resident(stage))

    await attack.play(_port_of(stage), count, look)
    grown = await series_of(stage) - series
    might = attack.may_take(count) + SLACK_BYTES
    return Played(attack.name, count, max(0, worst - before), might, grown, all(wells))


def _port_of(stage: Stage) -> int:
    return int(stage.gateway.at("traffic").rpartition(":")[2])


def resident(stage: Stage) -> int:
    """Bytes in memory."""
    status = Path(f"/proc/{stage.gateway.running.pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


async def series_of(stage: Stage) -> int:
    async with stage.session.get(stage.gateway.at("metrics", "/metrics")) as answer:
        return sum(not line.startswith("#") for line in (await answer.text()).splitlines())


async def is_served(stage: Stage) -> bool:
    """Whether a decent client is."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with stage.session.get(stage.gateway.at("traffic", "/v1/models"), timeout=timeout) as answer:
        return answer.status == 200
