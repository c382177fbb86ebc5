"""The command `hearth`: parses the command line and runs one command. Imports only what that command needs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

OUTSIDE = ("agent", "demo", "pod", "shadow", "simulate", "profile")
"""Commands that are found by their entry point."""

Command = Callable[[argparse.Namespace, Mapping[str, str]], int]
"""Takes parsed arguments and environment variables, returns an exit status."""


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 0 on success, 1 on failure, 2 for an invalid command line or configuration."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in ([name] for name in OUTSIDE):
        # These stand outside the gateway, and their flags are their own.
        from gateway.commands import entry_point

        return entry_point.run(words[0], words[1:])
    if words[:1] == ["child"]:
        # Internal: a child process of the supervisor.
        from gateway.commands import child

        return child.run(int(words[-1]))
    parser = make_parser(words)
    arguments = parser.parse_args(words)
    run = _command(arguments.command)
    if run is None:
        parser.print_help()
        return 0
    return run(arguments, os.environ.copy())


def _command(name: str | None) -> Command | None:
    """Import and return the function that runs a command, None without a command."""
    match name:
        case "serve":
            from gateway.commands.serve import run
        case "init":
            from gateway.commands.init import run
        case "import":
            from gateway.commands.import_files import run
        case "config":
            from gateway.commands.check import run
        case "policy":
            from gateway.commands.policy import run
        case "keys":
            from gateway.commands.keys import run
        case "cascade":
            from gateway.commands.cascade import run
        case "spend":
            from gateway.commands.spend import run
        case _:
            return _admin_command(name)
    return run


def _admin_command(name: str | None) -> Command | None:
    """Do the same for a command that talks to the admin port."""
    match name:
        case "doctor" | "baseline":
            from gateway.commands.doctor import run
        case "scale":
            from gateway.commands.scale import run
        case "deletion-cost":
            from gateway.commands.deletion_cost import run
        case "receipts" | "fleet" | "drain" | "reload":
            from gateway.commands.admin import run
        case _:
            return None
    return run


def make_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command line. Flags of a command are added only if its name is among the words."""
    parser = argparse.ArgumentParser(
        prog="hearth",
        description="Sends each request to the vLLM pod where its prompt is already warm.",
        epilog="First steps: `hearth demo` shows it on simulated pods, `hearth init` writes a configuration.",
    )
    parser.add_argument("--version", action="version", version=f"hearth {version('hearth-gateway')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="run the gateway",
        description="Run the gateway. Every flag may also be given by the environment (HEARTH_LISTEN for --listen) "
        "or by the configuration file; flags override the environment, which overrides the file.",
        allow_abbrev=False,
    )
    if "serve" in words:
        _add_serve_flags(serve)
    commands.add_parser("demo", help="show prefix routing beside round robin on simulated pods", add_help=False)
    init = commands.add_parser("init", help="write a first configuration from three answers")
    if "init" in words:
        from gateway.commands.init import add_flags

        add_flags(init)
    imports = commands.add_parser("import", help="take over the configuration of another gateway")
    if "import" in words:
        from gateway.commands.import_files import add_flags

        add_flags(imports)
    config = commands.add_parser("config", help="validate a configuration; print its JSON Schema")
    actions = config.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="validate a configuration; list all errors with their paths")
    check.add_argument("file", metavar="FILE")
    migrate = actions.add_parser("migrate", help="rewrite renamed keys of a configuration or policy")
    migrate.add_argument("file", metavar="FILE")
    migrate.add_argument("--write", action="store_true", help="replace the file, and keep the old one as FILE.bak")
    actions.add_parser("schema", help="print the JSON Schema of a configuration, for editors")
    policy = commands.add_parser("policy", help="validate, explain and compare policies")
    if "policy" in words:
        from gateway.commands.policy import add_flags

        add_flags(policy)
    commands.add_parser("agent", help="register the vLLM servers of this machine in Redis", add_help=False)
    keys = commands.add_parser("keys", help="create, rotate, revoke and list API keys")
    if "keys" in words:
        from gateway.commands.keys import add_flags

        add_flags(keys)
    cascade = commands.add_parser("cascade", help="calibrate cascades and report their cost")
    if "cascade" in words:
        from gateway.commands.cascade import add_flags

        add_flags(cascade)
    spend = commands.add_parser("spend", help="sum tokens and money from usage records")
    if "spend" in words:
        from gateway.commands.spend import add_flags

        add_flags(spend)
    _add_admin_commands(commands, words)
    _add_supply_commands(commands, words)
    commands.add_parser("pod", help="run a simulated vLLM pod", add_help=False)
    commands.add_parser("shadow", help="predict from a copy of another gateway's traffic", add_help=False)
    commands.add_parser("simulate", help="replay a trace on simulated pods", add_help=False)
    commands.add_parser("profile", help="measure a pod for simulations", add_help=False)
    return parser


ADMIN_COMMANDS = {
    "receipts": "show why requests were routed as they were",
    "fleet": "show the pods of a running gateway",
    "drain": "send a pod no more requests, or undo this",
    "reload": "reload the configuration of a running gateway",
    "doctor": "say what is wrong with a fleet, why, and the first thing to try",
    "baseline": "save what is normal for a fleet, or compare with it",
}
"""Commands that talk to the admin port."""


def _add_admin_commands(commands: Any, words: Sequence[str]) -> None:
    parsers = {name: commands.add_parser(name, help=says) for name, says in ADMIN_COMMANDS.items()}
    if not ADMIN_COMMANDS.keys() & set(words):
        return
    from gateway.commands import admin

    admin.add_receipts_flags(parsers["receipts"])
    admin.add_fleet_flags(parsers["fleet"])
    admin.add_drain_flags(parsers["drain"])
    admin.add_reload_flags(parsers["reload"])
    if {"doctor", "baseline"} & set(words):
        from gateway.commands import doctor

        doctor.add_doctor_flags(parsers["doctor"])
        doctor.add_baseline_flags(parsers["baseline"])


def _add_supply_commands(commands: Any, words: Sequence[str]) -> None:
    scale = commands.add_parser("scale", help="show how many engines there should be, or have a command follow it")
    if "scale" in words:
        from gateway.commands.scale import add_flags

        add_flags(scale)
    cost = commands.add_parser("deletion-cost", help="mark the pods that Kubernetes removes first when a count falls")
    if "deletion-cost" in words:
        from gateway.commands.deletion_cost import add_flags

        add_flags(cost)


def _add_serve_flags(serve: argparse.ArgumentParser) -> None:
    from gateway.config.loading import SETTINGS

    serve.add_argument("--config", metavar="FILE", help="YAML configuration file")
    for word in SETTINGS:
        if word.has_flag:
            action = "append" if word.is_list else "store"
            serve.add_argument(f"--{word.name}", dest=word.field, metavar=word.metavar, help=word.help, action=action)
