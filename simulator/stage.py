"""A gateway in front of simulated pods, all of them programs of their own that speak HTTP on the loopback address.

Starts, watches and ends them; independent of the workload.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from simulator.children import START_S, Child, ChildFailed, running
from simulator.engine_profile import COMPUTED, EngineProfile, dump_engine_profile
from simulator.profile import Profile

MODEL = "simulated"

LOOPBACK = "127.0.0.1:0"

ASK_AGAIN_S = 0.1

UNFLAGGED = (
    "step_table",
    "step_per_sequence_s",
    "step_per_kv_token_s",
    "request_s",
    "async_scheduling",
    "caches_prefixes",
    "host_kv_tokens",
)
"""Fields of a profile that a pod has no flag for: it reads them from a file."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where everything listens."""

    url: str
    """The gateway's traffic port."""
    admin_url: str
    pods: tuple[str, ...]
    pids: tuple[int, ...]
    """The gateway's first."""


@asynccontextmanager
async def staged(routing: str, pods: int, profile: Profile, logs: Path) -> AsyncIterator[Stage]:
    """Fresh pods with cold caches, and a gateway that has just found all of them ready. Raises `ChildFailed`.

    What they say goes into the folder `logs`.
    """
    make_folder(logs)
    async with AsyncExitStack() as stack:
        started = await start_pods(stack, [logs / f"{routing}-pod-{number}.log" for number in range(pods)], profile)
        urls = tuple(url for _, url in started)
        gateway, listening = await stack.enter_async_context(
            running(
                "gateway",
                gateway_arguments(routing, urls),
                name="the gateway",
                log=logs / f"{routing}-gateway.log",
                greeting=_listening_in,
            )
        )
        pids = (gateway.pid, *(child.pid for child, _ in started))
        stage = Stage(f"http://{listening['traffic']}", f"http://{listening['admin']}", urls, pids)
        await _all_ready(stage)
        yield stage


async def start_pods(stack: AsyncExitStack, logs: Sequence[Path], profile: Profile) -> list[tuple[Child, str]]:
    """One pod per log file, each with its URL; they end with the stack. All at once: a program of ours spends a second
    on its imports.
    """
    arguments = pod_arguments(profile)
    if any(getattr(profile, name) != getattr(Profile(), name) for name in UNFLAGGED):
        path = logs[0].with_name("engine.yaml")
        path.write_text(dump_engine_profile(EngineProfile(profile, COMPUTED, "simulated")), encoding="utf-8")
        arguments += ["--profile", str(path)]
    try:
        async with asyncio.TaskGroup() as group:
            starts = [
                group.create_task(
                    stack.enter_async_context(
                        running("simulator.pod", arguments, name=log.stem, log=log, greeting=_url_in)
                    )
                )
                for log in logs
            ]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [start.result() for start in starts]


def make_folder(folder: Path) -> None:
    """Where programs may log."""
    folder.mkdir(parents=True, exist_ok=True)


def pod_arguments(profile: Profile) -> list[str]:
    """The command line of one simulated pod."""
    flags = {
        "--listen": LOOPBACK,
        "--model": MODEL,
        "--time-scale": profile.time_scale,
        "--prefill-tokens-per-s": profile.prefill_tokens_per_s,
        "--prefill-quadratic-tokens": profile.prefill_quadratic_tokens,
        "--step-base-s": profile.step_base_s,
        "--kv-capacity-tokens": profile.kv_capacity_tokens,
        "--block-size": profile.block_size,
        "--max-num-seqs": profile.max_num_seqs,
        "--max-num-batched-tokens": profile.max_num_batched_tokens,
        "--max-model-len": profile.kv_capacity_tokens,
        "--scheduling-policy": "priority" if profile.by_priority else "fcfs",
    }
    return [str(part) for pair in flags.items() for part in pair]


def gateway_arguments(routing: str, pods: Sequence[str]) -> list[str]:
    """The command line of the gateway."""
    ports = [part for name in ("listen", "metrics-listen", "admin-listen") for part in (f"--{name}", LOOPBACK)]
    return ["serve", *ports, "--routing", routing, *(part for url in pods for part in ("--pod", url))]


def _url_in(line: bytes) -> str | None:
    return line.decode().strip() if line.startswith(b"http://") else None


def _listening_in(line: bytes) -> dict[str, str] | None:
    """The addresses in the gateway's log line that says where it listens."""
    try:
        record: dict[str, Any] = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    if record.get("event") != "listening":
        return None
    return {port: record[port][0] for port in ("traffic", "metrics", "admin")}


async def _all_ready(stage: Stage) -> None:
    async with aiohttp.ClientSession() as client:
        try:
            async with asyncio.timeout(START_S):
                while True:
                    if await _ready_pods(client, stage.admin_url) == len(stage.pods):
                        return
                    await asyncio.sleep(ASK_AGAIN_S)
        except TimeoutError:
            raise ChildFailed(f"the gateway did not find its pods ready within {START_S:.0f} s") from None


async def _ready_pods(client: aiohttp.ClientSession, admin_url: str) -> int:
    async with client.get(f"{admin_url}/fleet") as answer:
        fleet = await answer.json()
    return sum(pod["state"] == "ready" and bool(pod["engines"]) for pod in fleet["pods"])
