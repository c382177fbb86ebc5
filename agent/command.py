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

from agent.agent import Agent, AgentPlan
from agent.hardware import detect_gpus, detect_nics
from agent.heartbeat import HeartbeatIntervals
from agent.node_readings import NodeReader
from agent.server import ServerAddress, ServerProber
from agent.server_process import command_behind, url_host
from agent.settings import SETTINGS, AgentSettings, load_agent_settings
from gateway.config.flags import GivenValue
from gateway.runtime.addresses import Address
from gateway.runtime.event_log import EventLog
from gateway.runtime.line_writer import STDOUT, LineWriter
from tenancy.document import InvalidDocument


def main(argv: Sequence[str]) -> int:
    """Run the agent. Returns the exit status: 0 after a stop by signal, 2 if flags or variables are invalid."""
    flags: dict[str, GivenValue | None] = vars(make_parser().parse_args(argv))
    try:
        settings = load_agent_settings(flags, os.environ.copy(), socket.gethostname())
    except InvalidDocument as invalid:
        sys.stderr.write("".join(f"hearth: {fault}\n" for fault in invalid.errors))
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
    for word in SETTINGS:
        says = f"{word.help} [{word.variable}]".replace("%", "%%")
        action = "append" if word.is_list else "store"
        parser.add_argument(f"--{word.name}", dest=word.field, metavar=word.metavar, help=says, action=action)
    return parser


LogFunction = Callable[..., None]


async def run_agent(settings: AgentSettings, log_event: LogFunction) -> None:
    """Probe and publish until SIGTERM or SIGINT."""
    draw = SystemRandom()
    connector = aiohttp.TCPConnector(limit=64, force_close=True)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
        key = settings.pod_api_key
        asker = ServerProber(session, command_behind, key.value if key else None)
        plan = await asyncio.to_thread(make_plan, settings, log_event)
        clock, life = asyncio.get_running_loop().time, draw.getrandbits(32)
        agent = Agent(
            plan,
            asker,
            settings.redis,
            log_event=log_event,
            clock=clock,
            draw=draw.random,
            life=life,
            read_node=NodeReader().read,
        )
        async with listen_for_loads(settings.load_listen, agent, log_event), listen_for_signals() as stops:
            log_event(
                "info", "agent_started", version=version("hearth-gateway"), agent=plan.name, redis=str(settings.redis)
            )
            async with asyncio.TaskGroup() as group:
                endless = (agent.run, agent.heart.run, agent.watch_node)
                tasks = [group.create_task(run(), name="agent") for run in endless]
                await stops.sent.wait()
                await leave(settings, agent, stops, log_event)
                for task in tasks:
                    task.cancel()
            if settings.deregisters:
                await agent.heart.deregister()
        log_event("info", "agent_stopped", heartbeats=agent.heart.beats, invalid_datagrams=agent.loads.invalid)


def make_plan(settings: AgentSettings, log_event: LogFunction) -> AgentPlan:
    """Detect the hardware and return what to probe and publish. Blocks: drivers may take seconds to answer."""
    gpus = detect_gpus()
    log_event("info", "gpus_detected", source=gpus.source)
    host = url_host(settings.address)
    return AgentPlan(
        settings.name,
        configured_servers=tuple(ServerAddress(url, url) for url in settings.pods),
        probed_servers=tuple(
            ServerAddress(f"http://127.0.0.1:{port}", f"http://{host}:{port}") for port in settings.ports
        ),
        machine_facts={**gpus.facts, **detect_nics()},
        configured_facts=settings.facts,
        intervals=HeartbeatIntervals(settings.ttl_s),
        probe_interval_s=settings.probe_interval_s,
    )


async def leave(settings: AgentSettings, agent: Agent, stops: StopSignals, log_event: LogFunction) -> None:
    """Publish the pods as draining for up to `drain_s`, so that gateways place nothing new on them."""
    if not settings.deregisters or not settings.drain_s:
        return
    log_event("info", "drain_started", grace_s=settings.drain_s)
    agent.drain()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(settings.drain_s):
            await stops.again.wait()


class StopSignals:
    """The first signal asks for a stop, the second ends the grace period."""

    def __init__(self) -> None:
        self.sent, self.again = asyncio.Event(), asyncio.Event()

    def on_signal(self) -> None:
        (self.again if self.sent.is_set() else self.sent).set()


@contextlib.asynccontextmanager
async def listen_for_signals() -> AsyncIterator[StopSignals]:
    """Handle SIGTERM and SIGINT while the context is open."""
    loop, stops = asyncio.get_running_loop(), StopSignals()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stops.on_signal)
    try:
        yield stops
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def listen_for_loads(where: Address | None, agent: Agent, log_event: LogFunction) -> AsyncIterator[None]:
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
        log_event("warning", "load_listener_failed", listen=str(where), error=error.strerror or str(error))
        yield
        return
    try:
        yield
    finally:
        transport.close()
