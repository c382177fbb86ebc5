"""Trace one streamed chat through a gateway in this process: `make trace-request`.

Prints the core files that the request runs through, how often control switches from one file to another, and how many
Python calls it makes; once with a tenant, its tier and a limit, once without a policy. Depends on no test.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from gateway.app.build import build
from gateway.app.serving import (
    Signals,
    running_background_tasks,
    running_components,
    serving_traffic,
    wait_for_first_probes,
)
from gateway.config.loading import load_settings
from gateway.identity.policy import load_policy
from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from tests.sources import ROOT

CORE = ("routing", "scorers", "tenancy", "cascade", "gateway", "agent")

KEY = "sk-trace"

POLICY = f"""
auth: {{keys: {{legal: ["{hashlib.sha256(KEY.encode()).hexdigest()}"]}}}}
tiers: {{gold: {{priority: 10, ttft_s: 60, tpot_s: 1}}}}
tenants: {{legal: {{tier: gold, rpm: 1000000, output_tpm: 100000000, max_parallel_requests: 1000}}}}
"""

REQUEST = {
    "model": "simulated",
    "stream": True,
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "Why? " * 50}],
}


@dataclass(slots=True)
class Trace:
    """Calls of core functions in the order they were made, one file per call."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    """(file relative to the repository, qualified name)."""

    @property
    def files(self) -> list[str]:
        """Each file once, in the order in which the request reaches it."""
        return list(dict.fromkeys(file for file, _ in self.calls))

    @property
    def switches(self) -> int:
        """Calls whose file differs from that of the call before."""
        return sum(one[0] != other[0] for one, other in zip(self.calls, self.calls[1:], strict=False))

    def line(self, title: str) -> str:
        return f"{title}: {len(self.files)} files, {self.switches} switches, {len(self.calls)} calls"


@contextmanager
def traced(trace: Trace) -> Iterator[None]:
    """Record every call of a core function while the block runs."""
    files: dict[CodeType, str | None] = {}

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in files:
            path = Path(code.co_filename)
            inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in CORE
            files[code] = path.relative_to(ROOT).as_posix() if inside else None
        if (file := files[code]) is not None:
            trace.calls.append((file, code.co_qualname))

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


@asynccontextmanager
async def a_gateway(policy: str | None, config: str = "") -> AsyncIterator[int]:
    """Run a gateway with one simulated pod; yields the port for clients."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pod = await stack.enter_async_context(SimulatedPod(Options(profile=Profile(time_scale=100.0))))
        text = f"{config}\nlisten: 127.0.0.1:0\nmetrics_listen: off\nadmin_listen: off\n"
        text += f"discovery: {{static: {{pods: [{pod.url}]}}}}\n"
        if policy is not None:
            (folder / "policy.yaml").write_text(policy, encoding="utf-8")
            text += f"policy: {folder}/policy.yaml\n"
        (folder / "hearth.yaml").write_text(text, encoding="utf-8")
        settings = load_settings({}, {"HEARTH_LOG_LEVEL": "error"}, folder / "hearth.yaml")
        gateway = build(settings, load_policy(settings, {}))
        await stack.enter_async_context(running_components(gateway))
        servers = await stack.enter_async_context(serving_traffic(gateway, None))
        signals = Signals()
        await stack.enter_async_context(running_background_tasks(gateway, signals))
        await wait_for_first_probes(gateway, signals)
        await servers[0].start_serving()
        yield servers[0].sockets[0].getsockname()[1]


TRACED = 25
"""Requests that are traced; the one with the fewest calls counts, as the response is read in more or fewer pieces."""


async def ask(port: int, body: dict[str, Any]) -> bytes:
    """Send one chat on a connection of its own and return the response's bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    payload = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
    writer.write(head.encode() + payload)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def trace_request(policy: str | None, *, warmups: int = 3, config: str = "") -> Trace:
    """Trace streamed chats after `warmups` like them, so that nothing is done for the first time; return the shortest.

    Raises `RuntimeError` where the gateway did not answer with 200.
    """
    async with a_gateway(policy, config) as port:
        for _ in range(warmups):
            await ask(port, REQUEST)
        traces = []
        for _ in range(TRACED):
            traces.append(trace := Trace())
            with traced(trace):
                answer = await ask(port, REQUEST)
            if not answer.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(f"the traced request failed: {answer[:500]!r}")
    return min(traces, key=lambda trace: len(trace.calls))


def main(argv: Sequence[str] | None = None) -> int:
    """Print both traces."""
    parser = argparse.ArgumentParser(prog="make trace-request", description=__doc__)
    parser.add_argument("--calls", action="store_true", help="list every call in order")
    parser.add_argument("--files", action="store_true", help="list every file in order")
    options = parser.parse_args(argv)
    for title, policy in (("with tenant, tier and limit", POLICY), ("without a policy", None)):
        trace = asyncio.run(trace_request(policy))
        if options.calls:
            print(*(f"  {file}: {name}" for file, name in trace.calls), sep="\n")
        if options.files:
            print(*(f"  {file}" for file in trace.files), sep="\n")
        print(trace.line(title))
    return 0


if __name__ == "__main__":
    sys.exit(main())
