"""`hearth agent`: registers the vLLM servers beside it, for gateways to find."""

from __future__ import annotations

import asyncio
import socket
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

import uvloop

from agent.run import run_agent
from agent.settings import WORDS, gather
from gateway.runtime.event_log import EventLog
from gateway.runtime.line_writer import STDOUT, LineWriter
from tenancy.document import Invalid


def add_flags(parser: ArgumentParser) -> None:
    """One flag a word; each may also be given by the environment."""
    for word in WORDS:
        says = f"{word.help} [{word.variable}]".replace("%", "%%")
        action = "append" if word.many else "store"
        parser.add_argument(f"--{word.name}", dest=word.field, metavar=word.metavar, help=says, action=action)


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """The exit status: 0 after a stop by signal, 2 where what it was told is wrong."""
    flags = {word.field: getattr(arguments, word.field, None) for word in WORDS}
    try:
        settings = gather(flags, variables, socket.gethostname())
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
