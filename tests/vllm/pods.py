"""Real vLLM pods on the CPU: how one is started, so that two of them fit on a small machine and fetch nothing.

For fixtures of tests and for serve.py. It knows nothing of the gateway.
"""

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.sources import ROOT
from tests.vllm.children import Child, ChildFailedError, bounds, free_port

VENV = ROOT / ".venv-vllm"

BLOCK_TOKENS = 32
CONTEXT_TOKENS = 2048

FLAGS = (
    *("--host", "127.0.0.1"),
    # Compiling costs minutes, and these models gain nothing by it.
    "--enforce-eager",
    *("--max-model-len", str(CONTEXT_TOKENS), "--max-num-seqs", "8"),
    # 16 k tokens of cache: small enough for two pods beside other work, large enough for any one test.
    *("--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", "512"),
    "--enable-prompt-tokens-details",
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)

POOLING = ("--runner", "pooling", "--convert", "embed")
"""Flags of a pod that makes vectors instead of text."""

FINE = ("--dtype", "float32")
"""Flags of pods whose answers are compared: in bfloat16 the same tokens lead elsewhere, read at once or one by one."""

STORES_RESPONSES = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}

ENVIRONMENT = {
    # Nothing is fetched and nothing is reported.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Without it the engine's own sockets listen on every interface.
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # The worker in the engine's process: one import of torch less, and no two processes that spin for each other.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Pinned to cores, two pods may land on the same one.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # Else the first request for logprobs stalls the engine for 14 seconds and needs a C++ compiler.
    "TORCH_COMPILE_DISABLE": "1",
    "PYTHONHASHSEED": "0",
}

STARTS_WITHIN_S = 600.0
"""One pod takes 30 s on an idle machine of two cores, four at once 90 s, and several times that where others work."""


@dataclass(frozen=True, slots=True)
class PodPlan:
    """How to start one pod. `model` is a folder below `.venv-vllm/models`; port 0 takes any free one."""

    model: str
    name: str = ""
    """What the pod calls the model, where that is not the folder's name."""
    port: int = 0
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    lifetime_s: int = 3600
    """Even if whoever started it is killed, the pod ends after this."""


PLANS = (
    # Two alike, that tell what was warm and keep the responses they gave.
    PodPlan("smollm2", flags=FINE, environment=STORES_RESPONSES),
    PodPlan("smollm2", flags=FINE, environment=STORES_RESPONSES),
    # One that does not tell what was warm, and takes few requests at once.
    PodPlan("tinyqwen", flags=("--no-enable-prompt-tokens-details", "--max-num-queued-reqs", "4")),
    # One that makes vectors.
    PodPlan("tinyqwen", name="tinyqwen-embed", flags=POOLING),
)
"""The pods of a test session."""


class Pod(Child):
    """A vLLM server with its engine and worker processes."""

    def __init__(self, plan: PodPlan) -> None:
        port = plan.port or free_port()
        vllm = (str(VENV / "bin" / "vllm"), "serve", str(VENV / "models" / plan.model))
        self.model = plan.name or plan.model
        self.flags = plan.flags
        served = ("--served-model-name", self.model, "--port", str(port))
        # What the caller may have set is meant for another vLLM.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
        super().__init__(
            f"{self.model}-{port}",
            (*bounds(plan.lifetime_s), *vllm, *served, *FLAGS, *plan.flags),
            f"http://127.0.0.1:{port}",
            inherited | ENVIRONMENT | plan.environment,
        )

    async def ready(self) -> None:
        """Wait until it answers, then have it do everything once that is slow the first time."""
        await self.answers("/health", within_s=STARTS_WITHIN_S)
        try:
            if POOLING[0] not in self.flags:
                await warm_up(self.url, self.model)
        except (TimeoutError, aiohttp.ClientError) as fault:
            raise self.failure(f"its first answers failed ({fault!r})") from fault


async def warm_up(url: str, model: str) -> None:
    """Sampling with logprobs, guided decoding and each API's code are slow once."""
    user = {"role": "user", "content": "Warm up."}
    chat: dict[str, Any] = {"model": model, "messages": [user], "max_tokens": 4}
    requests: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/v1/chat/completions", chat | {"logprobs": True, "top_logprobs": 2}),
        ("/v1/chat/completions", chat | {"response_format": {"type": "json_object"}}),
        ("/v1/messages", chat),
        ("/v1/responses", {"model": model, "input": "Warm up.", "max_output_tokens": 4}),
    )
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=60)) as session:
        for path, body in requests:
            async with session.post(path, json=body) as answer:
                answer.raise_for_status()
                await answer.read()


def start(plans: Iterable[PodPlan]) -> list[Pod]:
    """Pods that are starting, side by side: much of a start is waiting. A failure midway ends the ones before it."""
    pods: list[Pod] = []
    try:
        # One by one into the list, so that it has them when the next one fails.
        for plan in plans:
            pods.append(Pod(plan))  # noqa: PERF401
    except BaseException:
        for pod in pods:
            pod.kill()
        raise
    return pods


async def ready(pod: Pod) -> None:
    """Wait until a pod is ready; one that fails to start is started once more, and its first log is shown and kept."""
    try:
        await pod.ready()
    except ChildFailedError as failure:
        print(f"{failure}\nIt is started again.", file=sys.stderr, flush=True)
        pod.kill()
        shutil.copy(pod.log, pod.log.with_suffix(".first.log"))
        pod.start_again()
        await pod.ready()


@contextlib.asynccontextmanager
async def running(plans: Iterable[PodPlan], started: Iterable[Pod] = ()) -> AsyncIterator[tuple[Pod, ...]]:
    """Pods that are all ready; those in `started` have been started already, and `plans` are not then."""
    pods = list(started) or start(plans)
    try:
        for pod in pods:
            await ready(pod)
        yield tuple(pods)
    finally:
        await asyncio.gather(*(pod.stop() for pod in pods))
