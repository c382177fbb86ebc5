"""`hearth child NAME FD`: a child process of the supervisor, configured over the descriptor. Internal."""

from __future__ import annotations

import asyncio
import socket

import uvloop

from gateway.cluster.channel import Channel, Failed, Orders
from gateway.cluster.index_process import be_warmth
from gateway.cluster.worker import be_worker
from gateway.commands.serve import ready_interpreter
from gateway.runtime.ports import CannotListen
from tenancy.document import Invalid


def run(channel_fd: int) -> int:
    """Run the child. Returns the exit status: 0 after a stop, 1 if it could not start."""
    ready_interpreter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(channel_fd))


async def _run(channel_fd: int) -> int:
    channel = await Channel.over(socket.socket(fileno=channel_fd))
    orders = await channel.receive()
    if not isinstance(orders, Orders):
        return 0  # the supervisor exited before it sent the configuration
    try:
        if orders.traffic:
            await be_worker(orders, channel)
        elif orders.host.warmth is not None:
            await be_warmth(orders, channel, orders.host.warmth)
    except Invalid as invalid:
        channel.send(Failed(tuple(map(str, invalid.faults))))
        return 1
    except CannotListen as trouble:
        channel.send(Failed((str(trouble),)))
        return 1
    finally:
        await channel.close()
    return 0
