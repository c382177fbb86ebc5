"""What every child does, worker or warmth process: goes by the words of its supervisor, and ends when that has gone."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from gateway.app.reload import Fresh
from gateway.app.serving import Signals
from gateway.cluster.channel import Channel
from gateway.cluster.messages import Drained, Orders, Ping, Renew, Renewed, Reopen
from gateway.runtime.event_log import EventLog
from gateway.runtime.guard import report, run
from tenancy.document import Invalid


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
