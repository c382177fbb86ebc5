"""Prints what tracing costs a gateway: CPU of the process per request, with tracing and without, in turn.

Two gateways run in one event loop of this process, one of them with tracing; the pods and the receiver have processes
of their own. Rounds alternate, so that a busy machine does not decide. The client's own share, measured by asking a pod
directly, is taken off before the ratio. The CPU of the exporter's thread counts.

    python -m bench.tracing [--rounds N] [--keep FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import uvloop

from bench.overhead.mock_pods import mock_pods
from bench.overhead.pods import MODEL
from bench.target import Target
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
from gateway.tracing import exporter

SAMPLE_RATIO = 0.1
MAX_OVERHEAD = 0.03
REQUESTS = 120
"""Of one round."""
ROUNDS = 40

EXPORT_INTERVAL_S = 0.02
"""So that each round pays for its own exports; small batches are dearer than those of a busy gateway."""

RECEIVER = """
import http.server, sys
class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
server.daemon_threads = True
print(server.server_address[1], flush=True)
import threading
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of request."""

    name: str
    tokens: int
    stream: bool

    def request(self, number: int) -> bytes:
        """Return a whole HTTP request; prompts differ."""
        body = {
            "model": MODEL,
            "stream": self.stream,
            "max_tokens": self.tokens,
            "messages": [{"role": "user", "content": f"{number} " + "Why? " * 200}],
        }
        payload = json.dumps(body).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: "
        return f"{head}{len(payload)}\r\n\r\n".encode() + payload


LOADS = (Load("unary, 16 tokens", 16, stream=False), Load("stream, 16 tokens", 16, stream=True))


@contextmanager
def a_receiver() -> Iterator[int]:
    """The port of a receiver in a process of its own, until the block ends."""
    command = [sys.executable, "-c", RECEIVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdin
        yield int(process.stdout.readline())
        process.stdin.close()


@asynccontextmanager
async def a_gateway(pods: Sequence[int], tracing: str) -> AsyncIterator[int]:
    """Run a gateway in this loop; yields its port."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = ", ".join(f"http://127.0.0.1:{port}" for port in pods)
        (folder / "hearth.yaml").write_text(
            "listen: 127.0.0.1:0\nmetrics_listen: off\nadmin_listen: off\n"
            f"discovery: {{static: {{pods: [{urls}]}}}}\n{tracing}\n"
        )
        settings = load_settings({}, {"HEARTH_LOG_LEVEL": "error"}, folder / "hearth.yaml")
        gateway = build(settings, load_policy(settings, {}))
        await stack.enter_async_context(running_components(gateway))
        servers = await stack.enter_async_context(serving_traffic(gateway, None))
        signals = Signals()
        await stack.enter_async_context(running_background_tasks(gateway, signals))
        await wait_for_first_probes(gateway, signals)
        await servers[0].start_serving()
        yield servers[0].sockets[0].getsockname()[1]


class Client(asyncio.Protocol):
    """Sends one request after another and looks for the end of each answer only."""

    def __init__(self, load: Load, count: int, first: int) -> None:
        self._load = load
        self._left = count
        self._number = first
        self._end = b"0\r\n\r\n" if load.stream else b"}"
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def _ask(self) -> None:
        self._left -= 1
        self._number += 1
        self._transport.write(self._load.request(self._number))

    def data_received(self, data: bytes) -> None:
        if not data.endswith(self._end):
            return
        if self._left:
            self._ask()
        else:
            self._transport.close()
            self.over.set_result(None)


async def cpu_us(load: Load, port: int, first: int) -> float:
    """Return the CPU of this process per request of one round, in microseconds, until its spans are exported."""
    loop, began_s = asyncio.get_running_loop(), time.process_time()
    clients = [Client(load, REQUESTS // 3, first + at * REQUESTS) for at in range(3)]
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)  # type: ignore[misc]
    async with asyncio.timeout(120):
        await asyncio.gather(*(client.over for client in clients))
    await asyncio.sleep(3 * EXPORT_INTERVAL_S)  # Also without tracing: the gateways probe their pods meanwhile.
    return (time.process_time() - began_s) / REQUESTS * 1e6


@dataclass(frozen=True, slots=True)
class Row:
    """Lower quartiles of all rounds, in microseconds: what disturbs a round only adds to it."""

    load: Load
    client_us: float
    without_us: float
    added_us: float

    @property
    def overhead(self) -> float:
        return self.added_us / (self.without_us - self.client_us)

    def __str__(self) -> str:
        own_us = self.without_us - self.client_us
        return f"{self.load.name:<20}{own_us:>10.1f}{self.added_us:>10.1f}{self.overhead:>10.2%}"


async def measure(load: Load, pod: int, without: int, traced: int, rounds: int) -> Row:
    """Run rounds in turn: a pod, then both gateways in an order that changes."""
    direct, took = list[float](), dict[int, list[float]]({without: [], traced: []})
    for at in range(-2, rounds):
        number = (at + 3) * 100_000
        client_us = await cpu_us(load, pod, number)
        order = (without, traced) if at % 2 else (traced, without)
        for place, port in enumerate(order):
            round_us = await cpu_us(load, port, number + 1_000 * (1 + place))
            if at >= 0:
                took[port].append(round_us)
        if at >= 0:
            direct.append(client_us)
    plain_us, traced_us = lower_quartile(took[without]), lower_quartile(took[traced])
    return Row(load, lower_quartile(direct), plain_us, traced_us - plain_us)


def lower_quartile(values: Sequence[float]) -> float:
    """Return the value below which a quarter of them lie."""
    return sorted(values)[len(values) // 4]


async def run(rounds: int) -> list[Row]:
    """Measure all loads."""
    exporter.EXPORT_INTERVAL_S = EXPORT_INTERVAL_S
    with mock_pods(2) as pods, a_receiver() as receiver:
        tracing = f"tracing: {{endpoint: 'http://127.0.0.1:{receiver}', sample_ratio: {SAMPLE_RATIO}}}"
        async with a_gateway(pods, "") as without, a_gateway(pods, tracing) as traced:
            return [await measure(load, pods[0], without, traced, rounds) for load in LOADS]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and its targets; 1 where one is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.tracing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--keep", type=Path, help="also write the table to this file")
    options = parser.parse_args(argv)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = runner.run(run(options.rounds))
    targets = [Target(f"overhead of tracing at 10 %, {row.load.name}", MAX_OVERHEAD, row.overhead) for row in rows]
    day = datetime.now(UTC).date()
    lines = [
        f"bench-tracing, {day}, 2 shared cores, CPython {platform.python_version()}",
        "",
        "CPU of the gateway's process per request in microseconds, without the client's share: without tracing, and",
        f"what tracing adds with {SAMPLE_RATIO:.0%} sampled. Lower quartiles of {options.rounds} rounds in turn.",
        "",
        f"{'load':<20}{'without':>10}{'added':>10}{'overhead':>10}",
        *map(str, rows),
        "",
        *map(str, targets),
    ]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.keep is not None:
        options.keep.write_text(text)
    return 0 if all(target.is_met for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
