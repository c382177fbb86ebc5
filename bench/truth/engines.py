"""Real vLLM pods on the CPU, each pinned to a core of its own, and a gateway in front of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.vllm.children import Child, bounds, free_port
from tests.vllm.gateways import in_front
from tests.vllm.pods import ENVIRONMENT, STARTS_WITHIN_S, VENV

MODEL = "smollm2"

MAX_BATCHED_TOKENS = 512

FLAGS = (
    *("--host", "127.0.0.1", "--enforce-eager", "--enable-prompt-tokens-details"),
    *("--max-model-len", "2048", "--max-num-seqs", "16", "--max-num-batched-tokens", str(MAX_BATCHED_TOKENS)),
    *("--block-size", "32", "--num-gpu-blocks-override", "384"),
)

OWN = {
    # A prefix cache that can be emptied between two workloads.
    "VLLM_SERVER_DEV_MODE": "1",
    # The worker in the engine's process: two processes that wait for each other by spinning cannot share a core.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "CALM_VLLM": "1",
    "PYTHONUNBUFFERED": "1",
}

LIFETIME_S = 5_400


class PinnedPod(Child):
    """A vLLM server of which all processes run on one core."""

    def __init__(self, core: int, niceness: int = 0) -> None:
        port = free_port()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
        pinned = (*(("nice", "-n", str(niceness)) if niceness else ()), "taskset", "-c", str(core))
        serve = (str(VENV / "bin" / "vllm"), "serve", str(VENV / "models" / MODEL))
        named = ("--served-model-name", MODEL, "--port", str(port))
        words = (*bounds(LIFETIME_S), *pinned, *serve, *named, *FLAGS)
        super().__init__(f"truth-{core}-{port}", words, f"http://127.0.0.1:{port}", inherited | ENVIRONMENT | OWN)
        self.core = core
        if niceness:
            favour_session(self.pid, niceness)

    def processes(self) -> list[int]:
        """Return the ids of all its processes."""
        return descendants(self.pid)


def favour_session(pid: int, niceness: int) -> None:
    """Give a process's session its niceness among others': where the kernel groups sessions, one inside counts alone.

    Nothing where the kernel does not group them, or the process may not.
    """
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness), encoding="ascii")


def descendants(pid: int) -> list[int]:
    """Return a process and all that it has started, as far as they still belong to it."""
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        try:
            children = Path(f"/proc/{one}/task/{one}/children").read_text(encoding="ascii")
        except OSError:
            continue
        todo.extend(int(child) for child in children.split())
    return found


@asynccontextmanager
async def pinned_pods(cores: Sequence[int], niceness: int = 0) -> AsyncIterator[list[PinnedPod]]:
    """A pod on each of these cores, all of them ready."""
    pods: list[PinnedPod] = []
    try:
        for core in cores:
            pods.append(PinnedPod(core, niceness))  # noqa: PERF401 - so that a failure midway ends those before it
        for pod in pods:
            await pod.answers("/health", within_s=STARTS_WITHIN_S)
        yield pods
    finally:
        await asyncio.gather(*(pod.stop() for pod in pods))


@asynccontextmanager
async def behind_gateway(pods: Sequence[PinnedPod], niceness: int = 0) -> AsyncIterator[str]:
    """The URL of a gateway with its default routing in front of these."""
    async with in_front([pod.url for pod in pods]) as gateway:
        if niceness:
            favour_session(gateway.pid, niceness)
        yield gateway.url
