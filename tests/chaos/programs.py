"""A program of ours that takes part: started, found ready, ended in every way, and started again where it was.

Knows nothing of what it does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from simulator.children import ChildFailed
from tests.families import family_of
from tests.sources import ROOT

LIFE_S = 4 * 3600
"""Whatever becomes of a run, what it started has ended by then."""

READY_S = 120.0

STOP_S = 60.0
"""A gateway told to stop lets go within its `drain_s` of 30; a busy machine takes longer to say so."""


@dataclass(slots=True)
class Program:
    """One of ours on ports that stay its own, so that it comes back where it was."""

    name: str
    words: tuple[str, ...]
    url: str
    probe: str
    log: Path
    running: asyncio.subprocess.Process | None = None
    starts: int = 0
    root: Path = ROOT
    """The checkout that it is started from."""

    async def start(self) -> None:
        """Start it; it is not ready yet."""
        self.starts += 1
        with self.log.open("ab") as log:
            self.running = await asyncio.create_subprocess_exec(
                *("timeout", "--foreground", "--signal=KILL", str(LIFE_S), sys.executable, "-m", *self.words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.root,
                start_new_session=True,
            )

    async def ready(self, session: aiohttp.ClientSession) -> None:
        """Wait until its probe says 200. Raises TimeoutError, and ChildFailed where it has ended by itself."""
        async with asyncio.timeout(READY_S):
            while not await _says_yes(session, self.probe):
                if not self.is_up:
                    raise ChildFailed(f"{self.name} ended before it was ready: see {self.log}")
                await pause(0.1)

    @property
    def is_up(self) -> bool:
        return self.running is not None and self.running.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """To it and all that it started, as it befalls a whole machine."""
        if self.running is not None and self.running.returncode is None:
            for pid in family_of(self.running.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    async def kill(self) -> None:
        """At once, whatever it is at."""
        self.signal(signal.SIGKILL)
        if self.running is not None:
            await self.running.wait()

    async def stop(self) -> bool:
        """As an operator would. False where it had to be killed, or said that something was wrong."""
        if self.running is None or not self.is_up:
            return True
        self.signal(signal.SIGCONT)
        with suppress(ProcessLookupError):
            self.running.terminate()  # To `timeout`, which passes it on: once, a second one would cut at once.
        try:
            async with asyncio.timeout(STOP_S):
                return await self.running.wait() in ENDED_WELL
        except TimeoutError:
            await self.kill()
            return False


ENDED_WELL = (0, 124, 143)
"""In order; as `timeout` says it, or a shell, of who was told to terminate and did."""


async def pause(seconds: float) -> None:
    """A moment of real time: programs elsewhere cannot tell us when."""
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, passed.set)
    await passed.wait()


async def read_text(session: aiohttp.ClientSession, url: str) -> str | None:
    """What a GET gives, None where nobody answers."""
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=20)) as answer:
            return await answer.text()
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None


async def read_json(session: aiohttp.ClientSession, url: str) -> Any:
    """The same as a value; None where it is not JSON either."""
    text = await read_text(session, url)
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None


async def _says_yes(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=5)) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
