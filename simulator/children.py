"""Programs of ours that run beside us: started with their first words read, ended by their own process and no other.

Each runs in a session of its own, so that an interrupt at the terminal reaches us alone and we end them in order.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

START_S = 120.0
"""Imports on a busy machine take seconds."""

END_S = 10.0

MAX_LINE_BYTES = 1 << 20


class ChildFailed(RuntimeError):  # noqa: N818 - what has happened, in two words
    """A program ended, or said nothing, before it was ready."""


@dataclass(frozen=True, slots=True)
class Child:
    """A running program; `log` gets whatever it says."""

    name: str
    program: asyncio.subprocess.Process
    log: Path

    @property
    def pid(self) -> int:
        return self.program.pid


@asynccontextmanager
async def running(
    module: str, arguments: Sequence[str], *, name: str, log: Path, greeting: Callable[[bytes], T | None]
) -> AsyncIterator[tuple[Child, T]]:
    """Run `python -m module` until the block ends. `greeting` finds in a line of output what we wait for."""
    with log.open("wb") as errors:
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            limit=MAX_LINE_BYTES,
            start_new_session=True,
        )
    child = Child(name, program, log)
    try:
        found = await _await_greeting(child, greeting)
        listening = asyncio.create_task(_keep(child), name=f"output of {name}")
        try:
            yield child, found
        finally:
            await end(program)
            await listening
    finally:
        await end(program)


async def _await_greeting(child: Child, greeting: Callable[[bytes], T | None]) -> T:
    output = child.program.stdout
    assert output is not None  # noqa: S101 - asked for above
    try:
        async with asyncio.timeout(START_S):
            async for line in output:
                if (found := greeting(line)) is not None:
                    return found
    except TimeoutError:
        raise ChildFailed(f"{child.name} was not ready within {START_S:.0f} s: see {child.log}") from None
    log_lines = child.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise ChildFailed(f"{child.name} ended before it was ready: {log_lines[-1] if log_lines else 'without a word'}")


async def _keep(child: Child) -> None:
    """Copy its output to its file: a full pipe would block it."""
    output = child.program.stdout
    assert output is not None  # noqa: S101 - asked for above
    with child.log.open("ab") as log:
        while piece := await output.read(1 << 16):
            log.write(piece)


async def end(program: asyncio.subprocess.Process) -> None:
    """Have a program end, by force where it does not in time."""
    if program.returncode is not None:
        return
    with suppress(ProcessLookupError):
        program.terminate()
    try:
        async with asyncio.timeout(END_S):
            await program.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            program.kill()
        await program.wait()
