"""What a supervisor and its children say to each other: whole values, so that all children go by the very same."""

from __future__ import annotations

import asyncio
import pickle
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Self, cast

from gateway.observe.log import EventLog
from gateway.reload import Fresh
from gateway.runtime.guard import report, run
from gateway.runtime.host import Host
from gateway.runtime.ports import Binding
from gateway.serving import Signals
from tenancy.document import Invalid


@dataclass(frozen=True, slots=True)
class Orders:
    """The first word to a child: what it is and goes by."""

    name: str
    host: Host
    fresh: Fresh
    traffic: tuple[Binding, ...] = ()
    """The reserved addresses of the traffic port; none for the warmth process."""
    drained: frozenset[str] = frozenset()
    """Pods that get no requests, as the siblings know it."""


@dataclass(frozen=True, slots=True)
class Renew:
    """To a child: put this in force."""

    fresh: Fresh


@dataclass(frozen=True, slots=True)
class Drained:
    """To a worker: this pod gets no requests, or again."""

    pod: str
    is_drained: bool


@dataclass(frozen=True, slots=True)
class Reopen:
    """To a child: log files were moved away, go on in new ones."""


@dataclass(frozen=True, slots=True)
class Ping:
    """To a child, now and then: are you there? Answered by the same."""


@dataclass(frozen=True, slots=True)
class Started:
    """From a child: it is at work."""


@dataclass(frozen=True, slots=True)
class Failed:
    """From a child: it cannot begin, and why."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Renewed:
    """From a child: what was wrong with what it should put in force; nothing where it did."""

    faults: tuple[str, ...] = ()


Word = Orders | Renew | Drained | Reopen | Ping | Started | Failed | Renewed


LENGTH_BYTES = 4


class Channel:
    """One end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """The channel over a connected socket, which it then owns."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, word: Word) -> None:
        """Say something. Never waits, and is lost where nobody is there."""
        said = pickle.dumps(word)
        self._writer.write(len(said).to_bytes(LENGTH_BYTES, "big") + said)

    async def receive(self) -> Word | None:
        """What the other side says next, None where it has gone."""
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
            said = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return cast("Word", pickle.loads(said))  # noqa: S301 - of our own kin, over a socket that nobody else holds

    async def close(self) -> None:
        """Be gone for the other side, once it has what was said."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


@asynccontextmanager
async def obeying(
    orders: Orders,
    channel: Channel,
    signals: Signals,
    say: EventLog,
    *,
    renew: Callable[[Fresh], None],
    reopen_logs: Callable[[], None] = lambda: None,
    keep_drained: Callable[[Drained], None] = lambda _: None,
) -> AsyncIterator[None]:
    """Do inside the block what the supervisor says. `renew` puts something in force, or raises `Invalid`.

    A supervisor that has gone, however that came, leaves its children to finish what runs; the run folder is theirs to
    clear away then.
    """
    task = asyncio.create_task(_obey(channel, renew, reopen_logs, keep_drained), name="obey")
    is_orphan = False

    def take_end(_: object) -> None:
        nonlocal is_orphan
        is_orphan = True
        say("error", "the supervisor has gone: finishing what runs")
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


async def _obey(
    channel: Channel,
    renew: Callable[[Fresh], None],
    reopen_logs: Callable[[], None],
    keep_drained: Callable[[Drained], None],
) -> None:
    while (word := await channel.receive()) is not None:
        match word:
            case Renew(fresh):
                try:
                    renew(fresh)
                except Invalid as invalid:
                    channel.send(Renewed(tuple(map(str, invalid.faults))))
                except Exception as error:  # noqa: BLE001 - reported; a child that ends for it would serve nothing
                    report("supervisor", error)
                    channel.send(Renewed((f"it could not be taken up: {type(error).__name__}",)))
                else:
                    channel.send(Renewed())
            case Drained():
                run("supervisor", keep_drained, word)
            case Reopen():
                run("supervisor", reopen_logs)
            case Ping():
                channel.send(word)
