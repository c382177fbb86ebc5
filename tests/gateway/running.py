"""`hearth serve` as its users run it: a command with flags and environment, three ports, and signals."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.sources import ROOT

ANYWHERE = ("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")


@dataclass(slots=True)
class Running:
    """A gateway in a process of its own; `lines` is all that it has logged so far."""

    running: asyncio.subprocess.Process
    lines: list[dict[str, Any]] = field(default_factory=list)
    early: list[dict[str, Any]] = field(default_factory=list)
    """What it said before it listened and nobody has asked for yet."""

    async def until(self, event: str, **fields: object) -> dict[str, Any]:
        """The next line that says so; lines before it are kept and skipped, but those before it listened can be had."""
        assert self.running.stdout is not None
        wanted = {"event": event, **fields}
        for line in self.early:
            if wanted.items() <= line.items():
                self.early.remove(line)
                return line
        async with asyncio.timeout(120):
            while True:
                raw = await self.running.stdout.readline()
                assert raw, f"ended before it said {wanted}: {self.lines}"
                self.lines.append(line := json.loads(raw))
                if wanted.items() <= line.items():
                    return dict(line)

    async def until_each(self, event: str, key: str, *values: object, **fields: object) -> None:
        """Wait for one such line per value of `key`, in whatever order the workers log them."""
        missing = set(values)
        while missing:
            line = await self.until(event, **fields)
            missing.discard(line.get(key))

    def at(self, port: str, path: str = "") -> str:
        """A URL on one of its ports: traffic, metrics or admin."""
        line = next(line for line in self.lines if line["event"] == "listening")
        return f"http://{line[port][0]}{path}"

    async def end(self) -> int:
        """Its exit status, once it has ended by itself."""
        assert self.running.stdout is not None
        async with asyncio.timeout(120):
            async for raw in self.running.stdout:
                self.lines.append(json.loads(raw))
            return await self.running.wait()


@asynccontextmanager
async def serving(
    *flags: str,
    variables: Mapping[str, str] | None = None,
    where: tuple[str, ...] = ANYWHERE,
    by: tuple[str, ...] = (),
) -> AsyncIterator[Running]:
    """A gateway that listens; killed at the end if it still runs. `by`: a command that becomes it, as prlimit does."""
    async with serving_to(asyncio.subprocess.PIPE, *where, *flags, variables=variables, by=by) as started:
        gateway = Running(started)
        await gateway.until("listening")
        gateway.early = gateway.lines[:-1]
        yield gateway


@asynccontextmanager
async def serving_to(
    stdout: int, *flags: str, variables: Mapping[str, str] | None = None, by: tuple[str, ...] = ()
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The same as a bare process that writes its log to a descriptor."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEARTH_")}
    started = await asyncio.create_subprocess_exec(
        *by,
        *(sys.executable, "-m", "gateway", "serve", *flags),
        stdout=stdout,
        cwd=ROOT,
        env=environment | dict(variables or {}),
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()
