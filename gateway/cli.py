"""The command `hearth`: reads the command line and calls one of the commands. Loads nothing that is not called."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 well, 1 it could not be done, 2 the command line is wrong."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["simulate"]:
        # Its flags are its own: they are read where they are known.
        from gateway.commands import simulate

        return simulate.run(words[1:])
    if words[:1] == ["child"]:
        # Not for people: what a supervisor runs.
        from gateway.commands import child

        return child.run(int(words[-1]))
    parser = make_parser(words)
    arguments = parser.parse_args(words)
    if arguments.command == "serve":
        from gateway.commands import serve

        return serve.run(arguments, os.environ.copy())
    if arguments.command == "config":
        from gateway.commands import check

        return check.run(arguments, os.environ.copy())
    if arguments.command == "policy":
        from gateway.commands import policy

        return policy.run(arguments, os.environ.copy())
    if arguments.command == "agent":
        from gateway.commands import agent

        return agent.run(arguments, os.environ.copy())
    if arguments.command == "keys":
        from gateway.commands import keys

        return keys.run(arguments, os.environ.copy())
    parser.print_help()
    return 0


def make_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the command line. The flags of `serve` are only made when they are asked for."""
    parser = argparse.ArgumentParser(
        prog="hearth", description="Sends each request to the vLLM pod where its prompt is already warm."
    )
    parser.add_argument("--version", action="version", version=f"hearth {version('hearth-gateway')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="run the gateway",
        description="Run the gateway. Every flag may also be given by the environment (HEARTH_LISTEN for --listen) "
        "or, in other words, by the configuration file; flags win over environment, environment over file.",
        allow_abbrev=False,
    )
    if "serve" in words:
        _add_serve_flags(serve)
    config = commands.add_parser("config", help="check a configuration file")
    actions = config.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="name every fault of a configuration at once, with its path")
    check.add_argument("file", metavar="FILE")
    actions.add_parser("schema", help="print the JSON Schema of a configuration, for editors")
    policy = commands.add_parser("policy", help="what a policy says, and what another would change")
    if "policy" in words:
        from gateway.commands.policy import add_flags

        add_flags(policy)
    agent = commands.add_parser(
        "agent", help="register the vLLM servers of this machine, for gateways to find", allow_abbrev=False
    )
    if "agent" in words:
        from gateway.commands.agent import add_flags

        add_flags(agent)
    keys = commands.add_parser("keys", help="make, rotate, revoke and list the keys of tenants")
    if "keys" in words:
        from gateway.commands.keys import add_flags

        add_flags(keys)
    commands.add_parser("simulate", help="replay a trace on simulated pods", add_help=False)
    return parser


def _add_serve_flags(serve: argparse.ArgumentParser) -> None:
    from gateway.config.sources import WORDS

    serve.add_argument("--config", metavar="FILE", help="all that flags say and more")
    for word in WORDS:
        if word.flag:
            action = "append" if word.many else "store"
            serve.add_argument(f"--{word.name}", dest=word.field, metavar=word.metavar, help=word.help, action=action)
