"""The pickers that are compared, each started in front of the same pods, and where they listen."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import sample

import msgspec

from bench.extproc.modes import ROOT
from bench.overhead.client import KEY
from bench.overhead.gateways import POLICY
from simulator.children import ChildFailed, end

OURS, BARE = "hearth", "bare"
START_S = 60.0

ReadAddresses = Callable[[bytes], tuple[str, ...]]
"""Finds the picker's addresses, one for each of its workers, in a line that it says."""


@dataclass(frozen=True, slots=True)
class Picker:
    """One that runs."""

    name: str
    addresses: tuple[str, ...]
    pid: int


@asynccontextmanager
async def ours(pods: Sequence[str], folder: Path, *, processes: int = 1) -> AsyncIterator[Picker]:
    """The gateway with tenants, tiers, limits and a usage log; alone, on the interpreter that measures."""
    policy = _policy(folder)
    first = ports_in_a_row(processes)
    ports = [
        argument for name in ("listen", "metrics-listen", "admin-listen") for argument in (f"--{name}", "127.0.0.1:0")
    ]
    ports += ["--extproc-listen", f"127.0.0.1:{first}"]
    addresses = tuple(f"127.0.0.1:{first + number}" for number in range(processes))
    named = [argument for pod in pods for argument in ("--pod", pod)]
    files = ("--policy", str(policy), "--usage-log", str(folder / "usage.jsonl"), "--processes", str(processes))
    # Older interpreters of a system want a package for Redis that .venv has no need of.
    python = sys.executable if processes == 1 else str(ROOT / ".venv" / "bin" / "python")
    arguments = (python, "-m", "gateway", "serve", *ports, *named, *files)
    async with _picker(OURS, arguments, folder, lambda line: addresses if _is_listening(line) else ()) as picker:
        yield picker


@asynccontextmanager
async def bare(pods: Sequence[str], folder: Path) -> AsyncIterator[Picker]:
    """A handler on grpc.aio that does nothing; on the interpreter that ours runs on."""
    (packages,) = (ROOT / ".venv-grpc" / "lib").glob("python*/site-packages")
    arguments = (sys.executable, "-m", "bench.extproc.bare", *(pod.removeprefix("http://") for pod in pods))
    async with _picker(BARE, ("env", f"PYTHONPATH={packages}", *arguments), folder, _only_line) as picker:
        yield picker


@asynccontextmanager
async def _picker(
    name: str, arguments: Sequence[str], folder: Path, read_addresses: ReadAddresses
) -> AsyncIterator[Picker]:
    """Everything it says goes into a file, which is looked at until it has said where it listens."""
    log = _log(folder)
    with log.open("wb") as output:
        program = await asyncio.create_subprocess_exec(
            *arguments, cwd=ROOT, stdout=output, stderr=output, env=_environment(), start_new_session=True
        )
    try:
        yield Picker(name, await _addresses(program, log, read_addresses), program.pid)
    finally:
        await end(program)


def _log(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "output"


def _policy(folder: Path) -> Path:
    """A policy under which every account is charged and nothing is ever rejected."""
    folder.mkdir(parents=True)
    policy = folder / "policy.yaml"
    policy.write_text(POLICY.format(digest=sha256(KEY).hexdigest(), other=sha256(b"another").hexdigest()))
    return policy


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HEARTH_")}


async def _addresses(program: asyncio.subprocess.Process, log: Path, read_addresses: ReadAddresses) -> tuple[str, ...]:
    try:
        async with asyncio.timeout(START_S):
            while program.returncode is None:
                for line in log.read_bytes().splitlines():  # noqa: ASYNC240 - a few lines, before anything is measured
                    if found := read_addresses(line):
                        return found
                await asyncio.sleep(0.1)
    except TimeoutError:
        pass
    log_text = await asyncio.to_thread(log.read_text)
    raise ChildFailed(f"a picker did not start: {log_text[-2000:]}")


def ports_in_a_row(count: int) -> int:
    """Return the first of `count` free ports, one a worker; below those of the system for outgoing connections."""
    return next(
        first for first in sample(range(20_000, 30_000), 1_000) if all(map(_is_free, range(first, first + count)))
    )


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def _is_listening(line: bytes) -> bool:
    return line.startswith(b"{") and msgspec.json.decode(line)["event"] == "listening"


def _only_line(line: bytes) -> tuple[str, ...]:
    return (line.decode(),) if line.startswith(b"127.0.0.1:") else ()
