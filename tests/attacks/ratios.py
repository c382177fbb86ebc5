"""What an attack costs beside a plain request that is measured in the same run: loop time, and memory at its peak.

Two ways. `a_target` starts a gateway in a process of its own; `Target.cost` is what an act costs that process,
`Target.plain` what a plain request does. `cost_of` measures a synchronous call in this process, for a parser alone, and
`plain_reading` what reading a plain request takes there. A bound is `cost.ratio(plain)`, never seconds.
"""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from routing.reading import read_request
from routing.request import Api
from tests.attacks.silent_pod import MODEL, silent_pod
from tests.gateway.running import Running, serving

PATH = "/v1/chat/completions"
PATIENCE_S = 120.0
LEAST_S = 1e-6
"""No cost counts as less, so that a ratio is never one of noise to nothing."""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of the event loop's thread, and bytes of memory above what was held before, at the worst moment."""

    cpu_s: float
    peak_bytes: int = 0

    def ratio(self, plain: Cost) -> float:
        """How many plain requests' CPU time this took."""
        return self.cpu_s / max(plain.cpu_s, LEAST_S)


# -- a gateway in a process of its own -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """A running gateway that is attacked; `pod` is the URL of what stands behind it."""

    gateway: Running
    pod: str

    @property
    def pid(self) -> int:
        return self.gateway.running.pid

    @property
    def port(self) -> int:
        """The traffic port."""
        return self.port_of("traffic")

    def port_of(self, name: str) -> int:
        """The port named `traffic`, `metrics` or `admin`."""
        return int(self.gateway.at(name).rpartition(":")[2])

    async def cost(self, act: Callable[[], Awaitable[object]]) -> Cost:
        """Measure what the gateway spends while `act` runs. `act` must wait until its bytes have been dealt with."""
        _reset_peak(self.pid)
        cpu_s, held = _loop_s(self.pid), _memory(self.pid, "VmRSS")
        await act()
        return Cost(_loop_s(self.pid) - cpu_s, max(0, _memory(self.pid, "VmHWM") - held))

    async def plain(self, count: int = 100, *, prompt_chars: int = 1000) -> Cost:
        """Measure one plain chat request, as the mean of `count` on one connection; the first few are not counted."""
        requested = plain_request(prompt_chars)

        async def ask(times: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            for _ in range(times):
                writer.write(requested)
                await read_answer(reader)
            writer.close()

        await ask(10)
        cost = await self.cost(lambda: ask(count))
        return Cost(cost.cpu_s / count, cost.peak_bytes)

    async def send(self, *pieces: bytes, port: int | None = None) -> bytes:
        """Send pieces on a connection of their own, one write each, and read until the gateway closes it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port or self.port)
        try:
            return await exchange(reader, writer, *pieces)
        finally:
            writer.transport.abort()


@asynccontextmanager
async def a_target(
    *flags: str,
    config: str = "",
    files: Mapping[str, str] | None = None,
    pod: str | None = None,
    by: tuple[str, ...] = (),
) -> AsyncIterator[Target]:
    """Start a gateway before a silent pod, or before `pod`. `config` is its YAML; `{folder}` in it and in `flags` is
    where `files` (name to text) lie; `by` is a command that becomes the gateway, as prlimit does.
    """
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(_folder({"hearth.yaml": config, **(files or {})}))
        behind = pod if pod is not None else await stack.enter_async_context(silent_pod())
        words = [word.replace("{folder}", folder) for word in flags]
        where = ("--config", str(Path(folder, "hearth.yaml"))) if config else ()
        gateway = await stack.enter_async_context(serving("--pod", behind, *where, *words, by=by))
        await gateway.until("pod_state_changed", state="ready")
        yield Target(gateway, behind)


@contextmanager
def _folder(files: Mapping[str, str]) -> Iterator[str]:
    with TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text.replace("{folder}", folder))
        yield folder


def plain_request(prompt_chars: int = 1000) -> bytes:
    """A decent chat request whose connection is kept."""
    stated = {"model": MODEL, "messages": [{"role": "user", "content": "word " * (prompt_chars // 5)}]}
    return request(json.dumps(stated).encode())


def request(body: bytes, *fields: str, path: str = PATH) -> bytes:
    """A POST with its length."""
    lines = (f"POST {path} HTTP/1.1", "host: hearth", "content-type: application/json", f"content-length: {len(body)}")
    return "\r\n".join((*lines, *fields, "", "")).encode() + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read one answer that has a length. Returns its status and body."""
    async with asyncio.timeout(PATIENCE_S):
        head = await reader.readuntil(b"\r\n\r\n")
        _, _, length = head.lower().partition(b"content-length: ")
        return int(head.split(b" ")[1]), await reader.readexactly(int(length.split(b"\r\n")[0] or b"0"))


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *pieces: bytes) -> bytes:
    """Send pieces, each in a write of its own, while reading. Returns what came until the other side closed."""
    reading = asyncio.create_task(_read_all(reader))
    async with asyncio.timeout(PATIENCE_S):
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
                if reading.done():
                    break
        except ConnectionError:
            pass
        return await reading


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    came = bytearray()
    try:
        while piece := await reader.read(1 << 16):
            came += piece
    except ConnectionError:
        pass
    return bytes(came)


def _loop_s(pid: int) -> float:
    """CPU seconds of the main thread, where the loop runs."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _memory(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _reset_peak(pid: int) -> None:
    """Have VmHWM begin anew from what is resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


# -- a call in this process ----------------------------------------------------------------------------------------


def cost_of(call: Callable[[], object], *, repeats: int = 3) -> Cost:
    """Measure a synchronous call: the least CPU time of `repeats`, and what Python's allocator held at the most."""
    best_s = float("inf")
    for _ in range(repeats):
        started_s = time.thread_time()
        call()
        best_s = min(best_s, time.thread_time() - started_s)
    tracemalloc.start()
    try:
        call()
        return Cost(best_s, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def plain_reading(prompt_chars: int = 1000, *, times: int = 50) -> Cost:
    """Measure in this process what reading the body of one plain chat request takes: the mean of `times`."""
    _, _, body = plain_request(prompt_chars).partition(b"\r\n\r\n")

    def read() -> None:
        for _ in range(times):
            read_request(Api.CHAT, body, request_id="plain", session=None)

    cost = cost_of(read)
    return Cost(cost.cpu_s / times, cost.peak_bytes)
