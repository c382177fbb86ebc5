"""Servers as child processes: started with a log, waited for, ended by their own process group.

A child is held by plain means (a process group and a URL), not by an event loop, so that a fixture of a whole session
may own it. It knows neither vLLM nor the gateway.
"""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence

import aiohttp

from tests.sources import ROOT

LOGS = ROOT / "out" / "vllm"
ENDS_WITHIN_S = 20.0

ANSWERS_WITHIN_S = 15.0
"""A request without an answer by then is sent again, on a connection of its own."""


class ChildFailedError(RuntimeError):
    """A server that did not come to answer, with the end of its log."""


class Child:
    """One server, in a session of its own: Ctrl-C at the terminal does not reach it, its starter ends it in order."""

    def __init__(self, name: str, words: Sequence[str], url: str, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.url = url
        self.log = LOGS / f"{name}.log"
        self._words = words
        self._environment = environment
        self._started = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            return subprocess.Popen(
                self._words,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __repr__(self) -> str:
        state = "running" if self.is_running else f"ended with {self._started.returncode}"
        return f"<{self.name} at {self.url}, {state}>"

    @property
    def pid(self) -> int:
        """Of the process that was started, and of its session."""
        return self._started.pid

    @property
    def is_running(self) -> bool:
        return self._started.poll() is None

    def last_words(self, lines: int = 25) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    async def has_ended(self, within_s: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._started.wait, within_s)
        return not self.is_running

    async def answers(self, path: str, within_s: float) -> None:
        """Wait until a GET of `path` is answered with 200."""
        try:
            patience = aiohttp.ClientTimeout(total=ANSWERS_WITHIN_S)
            async with asyncio.timeout(within_s), aiohttp.ClientSession(self.url, timeout=patience) as session:
                while not await is_well(session, path):
                    # Nobody tells us when it is: ask, and between two questions wait for its death.
                    if await self.has_ended(within_s=0.3):
                        raise self.failure("it ended while starting")
        except TimeoutError as late:
            raise self.failure(f"no good answer from {path} within {within_s:.0f} s") from late

    def failure(self, why: str) -> ChildFailedError:
        return ChildFailedError(f"{self!r}: {why}. The end of {self.log.relative_to(ROOT)}:\n{self.last_words()}")

    def kill(self) -> None:
        """End it the way a lost machine ends: all processes at once, connections cut."""
        self._signal(signal.SIGKILL)
        self._started.wait()

    def pause(self) -> None:
        """Have all its processes stand still, as on a machine that swaps or hangs; connections stay open."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """After a pause, as if nothing had been."""
        self._signal(signal.SIGCONT)

    def start_again(self) -> None:
        """The same server once more where it has ended, as its supervisor would: same address, empty memory."""
        assert not self.is_running
        self._started = self._start()

    async def stop(self) -> None:
        """End it as an operator does, then make sure that none of its processes is left."""
        self._signal(signal.SIGTERM)
        await self.has_ended(within_s=ENDS_WITHIN_S)
        self.kill()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._started.pid, number)


async def is_well(session: aiohttp.ClientSession, path: str) -> bool:
    try:
        async with session.get(path) as answer:
            return answer.status == 200
    except (TimeoutError, aiohttp.ClientError):
        return False


def bounds(lifetime_s: int) -> Iterator[str]:
    """Words before a command that end it when its time is over or its starter is killed, as far as the machine can."""
    if shutil.which("setpriv"):
        yield from ("setpriv", "--pdeathsig", "TERM", "--")
    if shutil.which("timeout"):
        yield from ("timeout", "--kill-after=15", str(lifetime_s))


def free_port() -> int:
    """A port below those that the system gives to outgoing connections: a pod takes half a minute to listen on it."""
    return next(port for port in random.sample(range(20_000, 30_000), 1000) if is_free(port))


def is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False
