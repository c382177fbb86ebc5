"""`make demo-envoy`: Envoy in front of two pods, Hearth deciding beside it which of them gets what.

Talks with two simulated pods, or with pods that are already there; everything listens on the loopback address.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvloop

from simulator.children import ChildFailed, running
from simulator.command import INTERRUPTED
from simulator.envoy import Envoy, bootstrap, envoy_running
from simulator.profile import Profile
from simulator.stage import LOOPBACK, MODEL, make_folder, start_pods

PODS = 2
TURNS = 3
TALKS = ("the north wind", "the sun", "a traveller")
ANSWER_TOKENS = 24
LIMIT_S = 120.0
ASK_AGAIN_S = 0.05
ROW = "{talk:<16} {turn:>4}  {pod:<24} {status:>6} {prompt:>8} {warm:>8} {head:>9}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of the demo. Without `pods` it simulates its own."""

    envoy: Path
    config: Path
    pods: tuple[str, ...]
    model: str
    keeps: bool
    out: Path


@dataclass(frozen=True, slots=True)
class Stage:
    """What runs: Envoy for clients, the gateway's admin port for us."""

    envoy: Envoy
    admin_url: str
    model: str


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 well, 1 where something did not start or a request was not answered."""
    wanted = read_wanted(argv)
    try:
        return uvloop.run(show(wanted))
    except ChildFailed as fault:
        print(f"hearth: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


async def show(wanted: Wanted) -> int:
    """Start what is wanted, hold a few talks through Envoy, and say what became of each turn."""
    logs = wanted.out / "logs"
    make_folder(logs)
    async with AsyncExitStack() as stack:
        pods = wanted.pods
        if not pods:
            started = await start_pods(stack, [logs / f"pod-{number}.log" for number in range(PODS)], Profile())
            pods = tuple(url for _, url in started)
        _, listening = await stack.enter_async_context(
            running(
                "gateway", gateway_arguments(pods), name="the gateway", log=logs / "gateway.log", greeting=reused_blocks
            )
        )
        config = bootstrap(wanted.config, listening["extproc"], pods)
        envoy = await stack.enter_async_context(envoy_running(wanted.envoy, config, logs))
        stage = Stage(envoy, f"http://{listening['admin'][0]}", wanted.model)
        print(f"{len(pods)} pods, Hearth beside them as Envoy's picker, Envoy in front at {envoy.url}\n")
        failed = await hold_talks(stage)
        if wanted.keeps:
            await keep(stage)
    return 1 if failed else 0


def gateway_arguments(pods: Sequence[str]) -> list[str]:
    """The gateway's command line: its own traffic port is open as well, as an operator's would be."""
    ports = [
        argument
        for name in ("listen", "metrics-listen", "admin-listen", "extproc-listen")
        for argument in (f"--{name}", LOOPBACK)
    ]
    return ["serve", *ports, *(argument for url in pods for argument in ("--pod", url))]


def reused_blocks(line: bytes) -> dict[str, list[str]] | None:
    """The addresses in the gateway's line that says where it listens."""
    with suppress(msgspec.DecodeError):
        record: dict[str, Any] = msgspec.json.decode(line)
        if record.get("event") == "listening":
            return {name: record[name] for name in ("traffic", "metrics", "admin", "extproc")}
    return None


# --- Requests ---------------------------------------------------------------------------------------------------------


async def hold_talks(stage: Stage) -> int:
    """Run conversations of a few turns in rotation, each turn with the whole history. Return how many failed."""
    print(
        ROW.format(talk="talk", turn="turn", pod="pod", status="status", prompt="prompt", warm="warm", head="head in")
    )
    failed = 0
    history: dict[str, list[dict[str, str]]] = {talk: [opening(talk)] for talk in TALKS}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S)) as client:
        await until_ready(client, stage)
        for turn in range(1, TURNS + 1):
            for talk, messages in history.items():
                status, text, receipt = await ask(client, stage, messages)
                failed += status != 200
                print(row(talk, turn, status, receipt), flush=True)
                messages += [
                    {"role": "assistant", "content": text},
                    {"role": "user", "content": f"And what then, said {talk}?"},
                ]
    print("\nA talk stays where its words are warm; new ones go where there is room.")
    return failed


def opening(talk: str) -> dict[str, str]:
    """Return a first message that is long enough to be worth caching."""
    lines = (f"{number}. {talk} and the others argued for the {number}th time." for number in range(1, 41))
    return {"role": "user", "content": " ".join(lines)}


async def ask(
    client: aiohttp.ClientSession, stage: Stage, messages: Sequence[dict[str, str]]
) -> tuple[int, str, dict[str, Any]]:
    """Through Envoy, and streamed: status, what was answered, and the receipt."""
    body = {"model": stage.model, "messages": messages, "max_tokens": ANSWER_TOKENS, "stream": True}
    async with client.post(f"{stage.envoy.url}/v1/chat/completions", json=body) as answer:
        text = "".join([message_text(line) async for line in answer.content])
        receipt_id = answer.headers.get("x-hearth-request-id", "")
        return answer.status, text, await read_receipt(client, stage, receipt_id)


def message_text(line: bytes) -> str:
    """What one line of a stream says, if anything."""
    if not line.startswith(b"data: {"):
        return ""
    record: dict[str, Any] = msgspec.json.decode(line[len(b"data: ") :])
    return "".join(choice["delta"].get("content") or "" for choice in record.get("choices", ()))


async def read_receipt(client: aiohttp.ClientSession, stage: Stage, receipt_id: str) -> dict[str, Any]:
    """Why it went where it went; written a moment after the answer's last byte."""
    if not receipt_id:
        return {}
    with suppress(TimeoutError):
        async with asyncio.timeout(LIMIT_S):
            while True:
                async with client.get(f"{stage.admin_url}/receipts/{receipt_id}") as answer:
                    if answer.status == 200:
                        found: dict[str, Any] = await answer.json()
                        return found
                await asyncio.sleep(ASK_AGAIN_S)
    return {}


def row(talk: str, turn: int, status: int, receipt: dict[str, Any]) -> str:
    attempt = receipt["attempts"][-1] if receipt.get("attempts") else {}
    head_s = attempt.get("actual_ttft_s")  # Behind own.yaml the first that is seen of an answer is its head.
    return ROW.format(
        talk=talk,
        turn=turn,
        pod=attempt.get("engine", "-"),
        status=status,
        prompt=attempt.get("predicted_input_tokens", "-"),
        warm=attempt.get("predicted_cached_input_tokens", "-"),
        head="-" if head_s is None else f"{head_s * 1e3:.0f} ms",
    )


async def until_ready(client: aiohttp.ClientSession, stage: Stage) -> None:
    """The gateway has found its pods. Raises `ChildFailed`."""
    try:
        async with asyncio.timeout(LIMIT_S):
            while True:
                async with client.get(f"{stage.admin_url}/fleet") as answer:
                    pods = (await answer.json())["pods"]
                if pods and all(pod["state"] == "ready" and pod["engines"] for pod in pods):
                    return
                await asyncio.sleep(ASK_AGAIN_S)
    except TimeoutError:
        raise ChildFailed(f"the gateway did not find its pods ready within {LIMIT_S:.0f} s") from None


async def keep(stage: Stage) -> None:
    """Say how to ask by hand, and wait until interrupted."""
    body = f'{{"model": "{stage.model}", "stream": true, "messages": [{{"role": "user", "content": "Who won?"}}]}}'
    print(f"\nStill up, until Ctrl-C. Ask through Envoy:\n\n  curl -iN {stage.envoy.url}/v1/chat/completions \\")
    print(f"    -H 'content-type: application/json' -d '{body}'\n")
    print(f"Why a request went where it went: curl -s '{stage.admin_url}/receipts?limit=1'")
    print(f"Envoy's own counters:             curl -s {stage.envoy.admin_url}/stats?filter=ext_proc")
    sys.stdout.flush()
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


def read_wanted(argv: Sequence[str] | None) -> Wanted:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m simulator.envoy_demo", description="Envoy in front of two pods.")
    parser.add_argument("--envoy", type=Path, required=True, metavar="FILE", help="Envoy's binary")
    parser.add_argument("--config", type=Path, default=Path("deploy/envoy/own.yaml"), metavar="FILE")
    parser.add_argument("--pod", action="append", default=[], metavar="URL", help="a pod that is already there")
    parser.add_argument("--model", default=MODEL, help="what the pods call it (default %(default)s)")
    parser.add_argument("--keep", action="store_true", help="leave it all up afterwards, until Ctrl-C")
    parser.add_argument("--out", type=Path, default=Path("out/demo-envoy"), metavar="DIR", help="(default %(default)s)")
    history = parser.parse_args(argv)
    return Wanted(history.envoy, history.config, tuple(history.pod), history.model, history.keep, history.out)


if __name__ == "__main__":
    sys.exit(main())
