"""The control channel between a supervisor and one child: messages, transport, and how a child follows them.

The channel is a socket pair. No other process holds an end of it, so it closes even when one side is killed: that is
how a child learns that its supervisor has gone.
"""

from __future__ import annotations

import asyncio
import pickle
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Self

from gateway.app.reload import LoadedConfig
from gateway.app.serving import Signals
from gateway.diagnosis.effects import FindingEffects
from gateway.runtime.event_log import EventLog
from gateway.runtime.guard import call_guarded, report_exception
from gateway.runtime.host import HostProcess
from gateway.runtime.ports import Binding
from tenancy.document import InvalidDocument


@dataclass(frozen=True, slots=True)
class ChildConfig:
    """The first message to a child: its name, its host, and the configuration to run with."""

    name: str
    host: HostProcess
    fresh: LoadedConfig
    traffic: tuple[Binding, ...] = ()
    """The reserved addresses of the traffic port; empty for the index process."""
    drained: frozenset[str] = frozenset()
    """Pods that an operator has drained."""
    providers_stopped: bool = False
    """An operator has stopped providers."""


@dataclass(frozen=True, slots=True)
class ApplyConfig:
    """To a child: apply this configuration."""

    fresh: LoadedConfig


@dataclass(frozen=True, slots=True)
class SetDrained:
    """To a worker: drain a pod, or undo that."""

    pod: str
    is_drained: bool


@dataclass(frozen=True, slots=True)
class ApplyEffects:
    """From the worker that diagnoses the fleet, and to all workers: apply exactly these effects of findings."""

    effects: FindingEffects


@dataclass(frozen=True, slots=True)
class ReopenLogs:
    """To a child: reopen log files that were rotated."""


@dataclass(frozen=True, slots=True)
class Ping:
    """To a child: a liveness check, answered by the same message."""


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """From a child: it has started."""


@dataclass(frozen=True, slots=True)
class ChildFailed:
    """From a child: it cannot start; one error per line."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfigApplied:
    """From a child: the errors of a configuration; empty once it was applied."""

    faults: tuple[str, ...] = ()


ControlMessage = (
    ChildConfig
    | ApplyConfig
    | SetDrained
    | ApplyEffects
    | ReopenLogs
    | Ping
    | ChildStarted
    | ChildFailed
    | ConfigApplied
)

LENGTH_BYTES = 4


class ControlChannel:
    """One end of the channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """Open a channel over a connected socket, which it then owns."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, message: ControlMessage) -> None:
        """Send a message without waiting; it is lost where the other side has gone."""
        body = pickle.dumps(message)
        self._writer.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)

    async def receive(self) -> ControlMessage | None:
        """Wait for the next message; None where the other side has gone."""
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
            body = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        message: ControlMessage = pickle.loads(body)  # noqa: S301 - from our own process, over a private socket pair
        return message

    async def close(self) -> None:
        """Flush and close."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


@asynccontextmanager
async def serve_commands(
    orders: ChildConfig,
    channel: ControlChannel,
    signals: Signals,
    log_event: EventLog,
    *,
    renew: Callable[[LoadedConfig], None],
    reopen_logs: Callable[[], None] = lambda: None,
    keep_drained: Callable[[SetDrained], None] = lambda _: None,
    apply_effects: Callable[[FindingEffects], None] = lambda _: None,
) -> AsyncIterator[None]:
    """Follow the commands of the supervisor inside the block. `renew` applies a configuration or raises
    `InvalidDocument`.

    When the supervisor has gone, the child finishes its requests and stops, and removes the run folder.
    """
    task = asyncio.create_task(
        _follow(channel, renew, reopen_logs, keep_drained, apply_effects), name="supervisor commands"
    )
    is_orphan = False

    def take_end(_: object) -> None:
        nonlocal is_orphan
        is_orphan = True
        log_event("error", "supervisor_lost")
        signals.stop.set()

    task.add_done_callback(take_end)
    try:
        yield
    finally:
        task.remove_done_callback(take_end)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if is_orphan and orders.host.folder is not None:
            shutil.rmtree(orders.host.folder, ignore_errors=True)


async def _follow(
    channel: ControlChannel,
    renew: Callable[[LoadedConfig], None],
    reopen_logs: Callable[[], None],
    keep_drained: Callable[[SetDrained], None],
    apply_effects: Callable[[FindingEffects], None],
) -> None:
    while (command := await channel.receive()) is not None:
        match command:
            case ApplyConfig(fresh):
                try:
                    renew(fresh)
                except InvalidDocument as invalid:
                    channel.send(ConfigApplied(tuple(map(str, invalid.errors))))
                except Exception as error:  # noqa: BLE001 - reported to the supervisor; the child goes on serving
                    report_exception("supervisor", error)
                    channel.send(ConfigApplied((f"it could not be taken up: {type(error).__name__}",)))
                else:
                    channel.send(ConfigApplied())
            case SetDrained():
                call_guarded("supervisor", keep_drained, command)
            case ApplyEffects(effects):
                call_guarded("supervisor", apply_effects, effects)
            case ReopenLogs():
                call_guarded("supervisor", reopen_logs)
            case Ping():
                channel.send(command)
