"""`hearth child NAME FD`: a child process of the supervisor, configured over the descriptor. Internal."""

from __future__ import annotations

import asyncio
import socket

import uvloop

from gateway.cluster.channel import ChildConfig, ChildFailed, ControlChannel
from gateway.cluster.index_process import run_index_process
from gateway.cluster.worker import run_worker
from gateway.commands.serve import prepare_interpreter
from gateway.runtime.ports import CannotListen
from tenancy.document import InvalidDocument


def run(channel_fd: int) -> int:
    """Run the child. Returns the exit status: 0 after a stop, 1 if it could not start."""
    prepare_interpreter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(channel_fd))


async def _run(channel_fd: int) -> int:
    channel = await ControlChannel.over(socket.socket(fileno=channel_fd))
    orders = await channel.receive()
    if not isinstance(orders, ChildConfig):
        return 0  # the supervisor exited before it sent the configuration
    try:
        if orders.traffic:
            await run_worker(orders, channel)
        elif orders.host.kv_index_socket is not None:
            await run_index_process(orders, channel, orders.host.kv_index_socket)
    except InvalidDocument as invalid:
        channel.send(ChildFailed(tuple(map(str, invalid.errors))))
        return 1
    except CannotListen as trouble:
        channel.send(ChildFailed((str(trouble),)))
        return 1
    finally:
        await channel.close()
    return 0
