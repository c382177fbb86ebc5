"""A child that cannot live is not started over and over; one that lived well is replaced at once."""

import asyncio
import os
import signal
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.app.reload import LoadedConfig
from gateway.cluster.channel import ChildConfig
from gateway.cluster.child import MAX_PAUSE_S, MIN_PAUSE_S, STABLE_AFTER_S, ChildProcess, ProcessSlot, next_pause
from gateway.config.settings import Settings
from gateway.runtime.event_log import EventLog
from gateway.runtime.host import HostProcess
from gateway.runtime.line_writer import LineWriter


def test_pauses_grow_with_every_early_death() -> None:
    """Up to a bound; a child that has lived long resets them."""
    pauses = [0.0]
    for _ in range(10):
        pauses.append(next_pause(pauses[-1], lived_s=0.5))
    assert pauses[1] == MIN_PAUSE_S
    assert all(later == min(MAX_PAUSE_S, 2 * earlier) for earlier, later in pairwise(pauses[1:]))
    assert pauses[-1] == MAX_PAUSE_S
    assert next_pause(MAX_PAUSE_S, lived_s=STABLE_AFTER_S) == MIN_PAUSE_S


async def test_a_child_that_hangs_is_replaced() -> None:
    """Stopped in its tracks it answers no ping: it is killed, and another one follows."""
    begun: asyncio.Queue[ChildProcess] = asyncio.Queue()
    with TemporaryDirectory(prefix="hearth-") as folder:
        host = HostProcess(folder=Path(folder), kv_index_socket=Path(folder) / "news.sock")

        async def orders() -> ChildConfig:
            return ChildConfig("warmth", host, LoadedConfig(Settings(), None))

        log_event = EventLog(LineWriter(Path(folder) / "log"))
        seat = ProcessSlot(
            "warmth", orders, log_event=log_event, began=begun.put_nowait, ended=lambda _: None, ping_s=0.02
        )
        keeping = asyncio.create_task(seat.run())
        try:
            async with asyncio.timeout(120):
                first = await begun.get()
                os.kill(first.pid, signal.SIGSTOP)
                second = await begun.get()
            assert second.pid != first.pid
            assert seat.restarts >= 1
        finally:
            seat.stop()
            seat.kill()
            await keeping
        log_event.writer.close()
        assert b'"event":"process_hung"' in (Path(folder) / "log").read_bytes()
