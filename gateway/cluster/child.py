"""Child processes of a supervisor, and the slots that keep them running.

A child is a process, a control channel, and a unix socket for its metrics and admin API. A slot starts its child, pings
it, kills it when it hangs, and replaces it with growing pauses.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import aiohttp

from gateway.app.reload import LoadedConfig
from gateway.cluster.channel import (
    ApplyConfig,
    ApplyEffects,
    ChildConfig,
    ChildFailed,
    ChildStarted,
    ConfigApplied,
    ControlChannel,
    Ping,
    ReopenLogs,
    SetDrained,
)
from gateway.diagnosis.effects import FindingEffects
from gateway.runtime.event_log import EventLog
from gateway.runtime.guard import call_guarded, restarted

ANSWER_S = 5.0
"""Timeout of a child's answer: a busy worker answers late, a hung one never."""


class ChildStartFailed(Exception):  # noqa: N818 - shown to the operator
    """A child could not start; one error per line."""

    def __init__(self, lines: tuple[str, ...]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


@dataclass(frozen=True, slots=True)
class ChildResponse:
    """The HTTP response of a child."""

    status: int
    body: bytes


def socket_of(folder: Path | None, name: str) -> Path:
    """The path of a child's unix socket."""
    return (folder or Path()) / f"{name}.sock"


class ChildProcess:
    """One running process. `over` must be awaited to its end."""

    def __init__(self, orders: ChildConfig, process: asyncio.subprocess.Process, channel: ControlChannel) -> None:
        self.name = orders.name
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it has started; fails with `ChildStartFailed`."""
        self.fresh = orders.fresh
        """The latest configuration it was sent."""
        self.unanswered = 0
        """Pings since its last answer."""
        self.on_effects: Callable[[FindingEffects], object] = lambda _: None
        """Receives the effects of the findings of the worker that diagnoses."""
        self._process = process
        self._channel = channel
        self._renewals: deque[asyncio.Future[tuple[str, ...]]] = deque()
        connector = aiohttp.UnixConnector(str(socket_of(orders.host.folder, orders.name)))
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=ANSWER_S))

    @classmethod
    async def start(cls, orders: ChildConfig) -> Self:
        """Start a process and send it its configuration."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "gateway", "child", orders.name, str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=_same_modules(os.environ),
                # An interrupt at the terminal goes to the supervisor, which then stops its children in order.
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        child = cls(orders, process, await ControlChannel.over(ours))
        child._channel.send(orders)
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self.started.done() and not self.started.cancelled() and self.started.exception() is None

    async def wait(self) -> int:
        """Take its messages until it has ended. Returns its exit status, negative where a signal ended it."""
        while (message := await self._channel.receive()) is not None:
            match message:
                case ChildStarted() if not self.started.done():
                    self.started.set_result(None)
                case ChildFailed(lines) if not self.started.done():
                    self.started.set_exception(ChildStartFailed(lines))
                case Ping():
                    self.unanswered = 0
                case ApplyEffects(effects):
                    call_guarded("supervisor", self.on_effects, effects)
                case ConfigApplied(faults) if self._renewals:
                    self._renewals.popleft().set_result(faults)
        status = await self._process.wait()
        if not self.started.done():
            self.started.set_exception(
                ChildStartFailed((f"{self.name} ended before it had begun, with status {status}",))
            )
        for waiting in self._renewals:
            waiting.set_result(("it has ended",))
        await self._channel.close()
        await self._session.close()
        return status

    def send_config(self, fresh: LoadedConfig) -> None:
        """Send a configuration without waiting."""
        self._renewals.append(asyncio.get_running_loop().create_future())
        self._channel.send(ApplyConfig(fresh))
        self.fresh = fresh

    async def apply_config(self, fresh: LoadedConfig) -> tuple[str, ...]:
        """Send a configuration and wait until it is applied. Returns its errors."""
        self.send_config(fresh)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.shield(self._renewals[-1])
        except TimeoutError:
            return (f"no answer within {ANSWER_S:g} s; it will follow when it can",)

    def set_drained(self, pod: str, *, is_drained: bool) -> None:
        """Have it drain a pod, or undo that."""
        self._channel.send(SetDrained(pod, is_drained))

    def apply_effects(self, effects: FindingEffects) -> None:
        """Have it apply exactly these effects of findings."""
        self._channel.send(ApplyEffects(effects))

    def reopen_logs(self) -> None:
        """Have it reopen its log files."""
        self._channel.send(ReopenLogs())

    async def request(self, path: str, *, method: str = "GET", body: bytes | None = None) -> ChildResponse | None:
        """Send a request to its unix socket. None where it does not answer."""
        try:
            async with self._session.request(method, f"http://localhost{path}", data=body) as answer:
                return ChildResponse(answer.status, await answer.read())
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    def ping(self) -> None:
        """Check whether its event loop still runs."""
        self.unanswered += 1
        self._channel.send(Ping())

    def stop(self) -> None:
        """The first time: finish running requests. The second time: end now."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)


def _same_modules(variables: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a child imports the same modules as this process."""
    return {**variables, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}


MIN_PAUSE_S = 0.1
MAX_PAUSE_S = 10.0
PING_S = 5.0
MAX_UNANSWERED = 12
"""Pings without an answer after which a child counts as hung: a minute. Counted in pings, not in seconds, so that a
suspended supervisor does not blame its children.
"""

STABLE_AFTER_S = 10.0
"""Lifetime of a child after which the next one starts without a growing pause."""


def next_pause(pause_s: float, lived_s: float) -> float:
    """Seconds until the next child starts, after one that started `pause_s` late and lived `lived_s`."""
    if lived_s >= STABLE_AFTER_S:
        return MIN_PAUSE_S
    return min(MAX_PAUSE_S, max(MIN_PAUSE_S, 2 * pause_s))


class ProcessSlot:
    """Keeps one child running. `keep` runs until `leave` was called and the child has ended."""

    def __init__(
        self,
        name: str,
        orders: Callable[[], Awaitable[ChildConfig]],
        *,
        log_event: EventLog,
        began: Callable[[ChildProcess], None],
        ended: Callable[[ChildProcess], None],
        ping_s: float = PING_S,
    ) -> None:
        """`orders` makes the configuration of each child. `began` and `ended` are called for each that has started."""
        self.name = name
        self.restarts = 0
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the first child has started; fails with `ChildStartFailed`."""
        self._orders = orders
        self._log_event = log_event
        self._began = began
        self._ended = ended
        self._ping_s = ping_s
        self._child: ChildProcess | None = None
        self._leaving = asyncio.Event()

    @property
    def child(self) -> ChildProcess | None:
        """The running child; None while it starts or is replaced."""
        return self._child if self._child is not None and self._child.is_running else None

    @restarted("supervisor")
    async def run(self) -> None:
        """Start a child, and another one whenever it ends."""
        pause_s = 0.0
        while not self._leaving.is_set():
            began_s = asyncio.get_running_loop().time()
            status, lines = await self._run_one()
            if not self.first.done():
                self.first.set_exception(ChildStartFailed(lines))
                return
            if self._leaving.is_set():
                return
            self.restarts += 1
            pause_s = next_pause(pause_s, asyncio.get_running_loop().time() - began_s)
            self._log_event(
                "info" if status == 0 else "error",
                "process_exited",
                process=self.name,
                exit_status=status,
                restart_delay_s=pause_s,
                **({"errors": lines} if lines else {}),
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._leaving.wait()

    def stop(self) -> None:
        """Stop the child without a successor. The second time: end it now."""
        self._leaving.set()
        if self._child is not None:
            self._child.stop()

    def set_drained(self, pod: str, *, is_drained: bool) -> None:
        """Have the child drain a pod, or undo that, even while it starts."""
        if self._child is not None:
            self._child.set_drained(pod, is_drained=is_drained)

    def kill(self) -> None:
        """Kill the child."""
        if self._child is not None:
            self._child.kill()

    async def _run_one(self) -> tuple[int, tuple[str, ...]]:
        """Run one child. Returns its exit status, and the errors if it could not start."""
        try:
            child = await ChildProcess.start(await self._orders())
        except OSError as error:
            return -1, (f"{self.name} cannot be started: {error}",)
        self._child = child
        if self._leaving.is_set():
            child.stop()
        child.started.add_done_callback(lambda _: self._note_start(child))
        watching = asyncio.create_task(self._watch(child), name=f"watch {self.name}")
        try:
            status = await child.wait()
        finally:
            watching.cancel()
            self._child = None
        failure = child.started.exception()
        if failure is None:
            self._ended(child)
            return status, ()
        return status, failure.lines if isinstance(failure, ChildStartFailed) else (str(failure),)

    @restarted("supervisor")
    async def _watch(self, child: ChildProcess) -> None:
        """Ping a child, and kill it when it hangs."""
        while child.unanswered < MAX_UNANSWERED:
            await asyncio.sleep(self._ping_s)
            if child.is_running:
                child.ping()
        self._log_event("error", "process_hung", process=self.name, pid=child.pid)
        child.kill()

    def _note_start(self, child: ChildProcess) -> None:
        if not child.is_running:
            return
        self._began(child)
        self._log_event("info", "process_started", process=self.name, pid=child.pid)
        if not self.first.done():
            self.first.set_result(None)
