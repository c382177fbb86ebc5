"""A child as its supervisor sees it: a process, the channel to it, and the unix socket on which it answers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import aiohttp

from gateway.app.reload import Fresh
from gateway.cluster.channel import Channel
from gateway.cluster.messages import Drained, Failed, Orders, Ping, Renew, Renewed, Reopen, Started

ANSWER_S = 5.0
"""A busy worker answers its supervisor when its streams let it; one that hangs is not waited for."""


class CannotStart(Exception):  # noqa: N818 - told to a person, who then acts
    """A child could not begin; each line says why."""

    def __init__(self, lines: tuple[str, ...]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


@dataclass(frozen=True, slots=True)
class Answer:
    """What a child answered to a question."""

    status: int
    body: bytes


def socket_of(folder: Path | None, name: str) -> Path:
    """Where a child answers."""
    return (folder or Path()) / f"{name}.sock"


class Child:
    """One running process. `over` must be awaited to its end."""

    def __init__(self, orders: Orders, program: asyncio.subprocess.Process, channel: Channel) -> None:
        self.name = orders.name
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it is at work; fails with `CannotStart` when it never will be."""
        self.fresh = orders.fresh
        """What it was told to go by."""
        self.unanswered = 0
        """Pings since it last answered one."""
        self._program = program
        self._channel = channel
        self._renewals: deque[asyncio.Future[tuple[str, ...]]] = deque()
        connector = aiohttp.UnixConnector(str(socket_of(orders.host.folder, orders.name)))
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=ANSWER_S))

    @classmethod
    async def start(cls, orders: Orders) -> Self:
        """Start a process of our own program and give it its orders."""
        ours, theirs = socket.socketpair()
        try:
            program = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "gateway", "child", orders.name, str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=_same_modules(os.environ),
                # An interrupt at the terminal is for the supervisor, who then ends its children in order.
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        child = cls(orders, program, await Channel.over(ours))
        child._channel.send(orders)
        return child

    @property
    def pid(self) -> int:
        return self._program.pid

    @property
    def is_at_work(self) -> bool:
        return self.started.done() and not self.started.cancelled() and self.started.exception() is None

    async def over(self) -> int:
        """Listen to it until it has ended. Returns its exit status, below zero where a signal ended it."""
        while (word := await self._channel.receive()) is not None:
            match word:
                case Started() if not self.started.done():
                    self.started.set_result(None)
                case Failed(lines) if not self.started.done():
                    self.started.set_exception(CannotStart(lines))
                case Ping():
                    self.unanswered = 0
                case Renewed(faults) if self._renewals:
                    self._renewals.popleft().set_result(faults)
        status = await self._program.wait()
        if not self.started.done():
            self.started.set_exception(CannotStart((f"{self.name} ended before it had begun, with status {status}",)))
        for waiting in self._renewals:
            waiting.set_result(("it has ended",))
        await self._channel.close()
        await self._session.close()
        return status

    def tell(self, fresh: Fresh) -> None:
        """Have it put something in force."""
        self._renewals.append(asyncio.get_running_loop().create_future())
        self._channel.send(Renew(fresh))
        self.fresh = fresh

    async def renew(self, fresh: Fresh) -> tuple[str, ...]:
        """The same, and what was wrong."""
        self.tell(fresh)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.shield(self._renewals[-1])
        except TimeoutError:
            return (f"no answer within {ANSWER_S:g} s; it will follow when it can",)

    def take_drained(self, pod: str, *, is_drained: bool) -> None:
        """Have it give a pod no requests, or again."""
        self._channel.send(Drained(pod, is_drained))

    def reopen_logs(self) -> None:
        """Have it go on in new log files."""
        self._channel.send(Reopen())

    async def ask(self, path: str, *, method: str = "GET", body: bytes | None = None) -> Answer | None:
        """A question over its socket; None where it does not answer."""
        try:
            async with self._session.request(method, f"http://localhost{path}", data=body) as answer:
                return Answer(answer.status, await answer.read())
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    def ping(self) -> None:
        """Ask whether its loop still turns."""
        self.unanswered += 1
        self._channel.send(Ping())

    def stop(self) -> None:
        """The first time: finish what runs. The second: end now."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._program.send_signal(number)


def _same_modules(variables: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a child finds the very modules that we run, wherever we were started."""
    return {**variables, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
