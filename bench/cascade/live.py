"""What a ladder costs at work: the relay's CPU for a chunk of a released stream, and how much later a kept one begins.

    python -m bench.cascade.live [--streams N] [--tokens N] [--rounds N] [--keep FILE]

A real gateway in a process of its own, before a pod that is as cheap as it can be and says how sure it is where that is
asked. CPU by the kernel's accounting; cases in turns; exit code 1 where a bound is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter

from bench.cascade.sure_pod import SurePod
from bench.overhead.accounts import CpuBook
from cascade.ladder_file import ANY_BUCKET, Cut, Evidence, LadderFile, Promise, Stage
from cascade.ladder_json import write_ladder_file

PACE_S = 0.02
WINDOW, BOUND_MS = 16, 150.0
MOST_RATIO = 1.3
SLOW_PACE_S = 0.03
"""So slow that time closes the window, not its tokens."""
PLAIN, RELEASED, STREAMED = "small", "auto", "asked"


@dataclass
class Round:
    """One case, once: CPU of the gateway, and what the clients saw."""

    cpu_s: float = 0.0
    chunks: int = 0
    first_s: list[float] = field(default_factory=list)
    leaked: int = 0

    @property
    def us(self) -> float:
        return self.cpu_s / max(1, self.chunks) * 1e6


def settings(folder: Path, pod: str) -> Path:
    cuts = (Cut(0, ANY_BUCKET, 0.0),)
    promise, evidence = Promise(0.01, 0.95), Evidence(1000, "sha256:0", kept=1.0)
    file = LadderFile(("small", "big"), "margin", Stage.WINDOW, promise, evidence, cuts, is_promised=True)
    (folder / "auto.json").write_bytes(write_ladder_file(file))
    ladder = {
        "model_name": "auto",
        "ladder": ["small", "big"],
        "calibration": str(folder / "auto.json"),
        "hold_back": {"tokens": WINDOW, "max_added_ttft_ms": BOUND_MS},
    }
    path = folder / "hearth.yaml"
    path.write_text(json.dumps({"discovery": {"static": {"pods": [pod]}}, "model_list": [ladder]}))
    return path


async def stream(port: int, model: str, tokens: int, pace_s: float, *, asks: bool) -> tuple[float, int, int]:
    """Seconds to the first content, events, and events with log-probabilities, of one stream."""
    body: dict[str, object] = {"model": model, "max_tokens": tokens, "seed": int(pace_s * 1000), "stream": True}
    body |= {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    body |= {"logprobs": True, "top_logprobs": 5} if asks else {}
    raw = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
    began_s, first_s, events, sure = perf_counter(), 0.0, 0, 0
    writer.write(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
    while piece := await reader.read(1 << 16):
        events += piece.count(b"\n\ndata: ") + piece.count(b"\r\ndata: ")
        sure += piece.count(b'"logprobs":{')
        if not first_s and b'"content":" ' in piece:
            first_s = perf_counter() - began_s
    writer.close()
    return first_s, events, sure


async def play(port: int, pid: int, case: str, streams: int, tokens: int, pace_s: float = PACE_S) -> Round:
    book, seen = CpuBook(pid), Round()
    before_s = book.used_s()
    model = PLAIN if case == STREAMED else case
    asked = [
        asyncio.create_task(_later(at * pace_s / streams, port, model, tokens, pace_s, asks=case == STREAMED))
        for at in range(streams)
    ]
    for task in asyncio.as_completed(asked):
        first_s, events, sure = await task
        seen.first_s.append(first_s)
        seen.chunks += events
        seen.leaked += sure if case != STREAMED else 0
    seen.cpu_s = book.used_s() - before_s
    return seen


async def _later(
    wait_s: float, port: int, model: str, tokens: int, pace_s: float, *, asks: bool
) -> tuple[float, int, int]:
    await asyncio.sleep(wait_s)  # Streams that begin together would come in heaps.
    return await stream(port, model, tokens, pace_s, asks=asks)


def share(seconds: Sequence[float], part: float) -> float:
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


async def measure(options: argparse.Namespace) -> tuple[list[str], bool]:
    pod = SurePod()
    server = await asyncio.get_running_loop().create_server(pod.protocol, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        config = settings(Path(folder), url)
        listen = ("--listen", "127.0.0.1:0", "--metrics", "off", "--admin", "off")
        command = (sys.executable, "-m", "gateway", "serve", "--config", str(config), *listen, "--log-level", "info")
        gateway = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            port = await _port(gateway)
            return await _compare(port, gateway.pid, options)
        finally:
            gateway.terminate()
            await gateway.wait()
            server.close()


async def _port(gateway: asyncio.subprocess.Process) -> int:
    """Where it listens; it has found its pod by then."""
    assert gateway.stdout is not None
    port = ready = 0
    async with asyncio.timeout(60):
        while not (port and ready):
            line = json.loads(await gateway.stdout.readline())
            if line["message"] == "listening":
                port = int(line["traffic"][0].rpartition(":")[2])
            ready = ready or line["message"] == "pod ready"
    drained = asyncio.create_task(_drain(gateway.stdout))
    drained.add_done_callback(lambda _: None)
    TASKS.add(drained)
    return port


TASKS: set[asyncio.Task[None]] = set()


async def _drain(stdout: asyncio.StreamReader) -> None:
    while await stdout.readline():
        pass


async def _compare(port: int, pid: int, options: argparse.Namespace) -> tuple[list[str], bool]:
    streams, tokens = options.streams, options.tokens
    cases: dict[str, list[Round]] = {PLAIN: [], STREAMED: [], RELEASED: []}
    for _ in range(options.rounds):
        for case, rounds in cases.items():
            rounds.append(await play(port, pid, case, streams, tokens))
    plain, asked, released = (median([each.us for each in rounds]) for rounds in cases.values())
    second_us = await _request_us(port, pid)
    anew = plain + second_us / tokens
    lines = [
        _row("chunk of a plain stream", plain),
        _row("with log-probabilities that were asked for", asked, asked / plain),
        _row("released, log-probabilities taken out", released, released / plain) + f"  (at most {MOST_RATIO})",
        _row("begun anew without them: a second request", second_us),
        _row(f"as much per chunk of {tokens}", anew, anew / plain),
    ]
    later: list[tuple[float, float]] = []
    for _ in range(options.rounds):
        held = (await play(port, pid, RELEASED, streams, 24, SLOW_PACE_S)).first_s
        usual = (await play(port, pid, PLAIN, streams, 24, SLOW_PACE_S)).first_s
        later.append((share(held, 0.5) - share(usual, 0.5), share(held, 0.99) - share(usual, 0.99)))
    p50, p99 = (median(column) * 1000 for column in zip(*later, strict=True))
    told = f"{p50:.1f} ms p50, {p99:.1f} ms p99 (at most {BOUND_MS:g})"
    lines.append(f"added TTFT of kept streams, windows closed by time: {told}")
    leaked = sum(each.leaked for rounds in cases.values() for each in rounds)
    lines.append(f"events with log-probabilities that nobody asked for: {leaked}")
    return lines, released <= MOST_RATIO * plain and not leaked and p99 <= BOUND_MS + options.slack_ms


def _row(words: str, us: float, ratio: float | None = None) -> str:
    return f"{words:46}{us:8.1f} us" + ("" if ratio is None else f"  {ratio:5.2f}")


async def _request_us(port: int, pid: int) -> float:
    """What one more request of two tokens costs the gateway, all in all."""
    seen = await play(port, pid, PLAIN, 300, 2)
    return seen.cpu_s / 300 * 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slack-ms", type=float, default=15.0, help="what a busy machine may add to a timer")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args(arguments)
    lines, is_kept = asyncio.run(measure(options))
    load = f"{options.streams} streams of {options.tokens} tokens, {options.rounds} rounds"
    head = f"Ladders at work: {load}; window {WINDOW} tokens or {BOUND_MS:g} ms; Python {platform.python_version()}"
    shown = "\n".join([head, *lines, "kept" if is_kept else "BROKEN"])
    print(shown)
    if options.keep is not None:
        options.keep.write_text(shown + "\n")
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
