"""`hearth agent`: reads its flags, opens what it needs, probes and reports until a signal, and leaves in order.

`gateway` finds `main` by the entry point `agent` of the group `hearth.commands`, and imports nothing of this package.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from argparse import ArgumentParser
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.metadata import version
from random import SystemRandom

import aiohttp
import uvloop

from agent.agent import Agent, Plan
from agent.hardware import look_for_gpus, look_for_nics
from agent.heartbeat import Rhythm
from agent.server import Asker, Spot
from agent.server_process import bracketed, command_behind
from agent.settings import WORDS, AgentSettings, gather
from gateway.config.flags import Given
from gateway.runtime.addresses import Address
from gateway.runtime.event_log import EventLog
from gateway.runtime.line_writer import STDOUT, LineWriter
from tenancy.document import Invalid


def main(argv: Sequence[str]) -> int:
    """Run the agent. Returns the exit status: 0 after a stop by signal, 2 if flags or variables are invalid."""
    flags: dict[str, Given | None] = vars(make_parser().parse_args(argv))
    try:
        settings = gather(flags, os.environ.copy(), socket.gethostname())
    except Invalid as invalid:
        sys.stderr.write("".join(f"hearth: {fault}\n" for fault in invalid.faults))
        return 2
    writer = LineWriter(STDOUT)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_agent(settings, EventLog(writer, settings.log_level)))
    finally:
        writer.close()
    return 0


def make_parser() -> ArgumentParser:
    """Return the parser of the flags, one per setting; each can also be given by its variable."""
    parser = ArgumentParser(prog="hearth agent", allow_abbrev=False)
    for word in WORDS:
        says = f"{word.help} [{word.variable}]".replace("%", "%%")
        action = "append" if word.many else "store"
        parser.add_argument(f"--{word.name}", dest=word.field, metavar=word.metavar, help=says, action=action)
    return parser


Say = Callable[..., None]


async def run_agent(settings: AgentSettings, say: Say) -> None:
    """Probe and publish until SIGTERM or SIGINT."""
    draw = SystemRandom()
    connector = aiohttp.TCPConnector(limit=64, force_close=True)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
        key = settings.pod_api_key
        asker = Asker(session, command_behind, key.value if key else None)
        plan = await asyncio.to_thread(make_plan, settings, say)
        clock, life = asyncio.get_running_loop().time, draw.getrandbits(32)
        agent = Agent(plan, asker, settings.redis, say=say, clock=clock, draw=draw.random, life=life)
        async with taking_loads(settings.loads, agent, say), taking_stops() as stops:
            say("info", "agent started", version=version("hearth-gateway"), agent=plan.name, redis=str(settings.redis))
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(agent.run(), name="look"), group.create_task(agent.heart.run(), name="beat")]
                await stops.told.wait()
                await leave(settings, agent, stops, say)
                for task in tasks:
                    task.cancel()
            if settings.leaves:
                await agent.heart.leave()
        say("info", "agent stopped", beats=agent.heart.beats, strange_datagrams=agent.loads.invalid)


def make_plan(settings: AgentSettings, say: Say) -> Plan:
    """Detect the hardware and return what to probe and publish. Blocks: drivers may take seconds to answer."""
    gpus = look_for_gpus()
    say("info", gpus.words)
    host = bracketed(settings.address)
    return Plan(
        settings.name,
        given=tuple(Spot(url, url) for url in settings.pods),
        probed=tuple(Spot(f"http://127.0.0.1:{port}", f"http://{host}:{port}") for port in settings.ports),
        machine={**gpus.told, **look_for_nics()},
        said=settings.said,
        rhythm=Rhythm(settings.ttl_s),
        look_s=settings.look_s,
    )


async def leave(settings: AgentSettings, agent: Agent, stops: Stops, say: Say) -> None:
    """Publish the pods as draining for up to `drain_s`, so that gateways place nothing new on them."""
    if not settings.leaves or not settings.drain_s:
        return
    say("info", "draining", grace_s=settings.drain_s)
    agent.drain()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(settings.drain_s):
            await stops.again.wait()


class Stops:
    """The first signal asks for a stop, the second ends the grace period."""

    def __init__(self) -> None:
        self.told, self.again = asyncio.Event(), asyncio.Event()

    def take(self) -> None:
        (self.again if self.told.is_set() else self.told).set()


@contextlib.asynccontextmanager
async def taking_stops() -> AsyncIterator[Stops]:
    """Handle SIGTERM and SIGINT while the context is open."""
    loop, stops = asyncio.get_running_loop(), Stops()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stops.take)
    try:
        yield stops
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def taking_loads(where: Address | None, agent: Agent, say: Say) -> AsyncIterator[None]:
    """Receive the load datagrams of engines while the context is open.

    If another agent has the port, this is logged and no loads are received.
    """
    if where is None:
        yield
        return
    try:
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: agent.loads, (where.host, where.port)
        )
    except OSError as error:
        say("warning", "no loads are taken", loads=str(where), why=error.strerror or str(error))
        yield
        return
    try:
        yield
    finally:
        transport.close()
