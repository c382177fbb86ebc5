"""The command line as a page, docs/cli.md, from the parsers themselves; and all other tables that are made of the code.

`python -m tests.reference --keep` writes them anew (`make reference`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from agent.command import make_parser as make_agent_parser
from gateway.cli import OUTSIDE, make_parser
from simulator.command import make_parser as make_simulate_parser
from simulator.demo import make_parser as make_demo_parser
from simulator.pod import make_parser as make_pod_parser
from simulator.profiling.command import make_parser as make_profile_parser
from simulator.shadow import make_parser as make_shadow_parser
from tests.generated import pages
from tests.sources import ROOT

PAGE = ROOT / "docs" / "cli.md"

HEAD = """\
# Command line

Stability: stable. Generated from the parsers by `make reference`; do not edit.

`hearth COMMAND --help` shows the same. Exit status: 0 success, 1 failure, 2 an invalid command line or configuration.
"""

PARSERS = {
    "agent": make_agent_parser,
    "demo": make_demo_parser,
    "pod": make_pod_parser,
    "profile": make_profile_parser,
    "shadow": make_shadow_parser,
    "simulate": make_simulate_parser,
}
"""Parsers of the commands that stand outside the gateway."""


def page() -> str:
    """Return the complete page."""
    parts = [HEAD]
    root = make_parser([])
    for name, words in commands(root):
        parser = PARSERS[name]() if name in OUTSIDE else commands_of(make_parser([name]))[name]
        parts += sections(parser, f"hearth {name}", words)
    return "\n".join(parts)


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield the subcommands of a parser with their one line of help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield choice.dest, choice.help or ""


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the subcommands by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def sections(parser: argparse.ArgumentParser, name: str, words: str) -> Iterator[str]:
    """Yield the section of a command, then those of its subcommands."""
    described = (parser.description or f"{words[:1].upper()}{words[1:]}.").replace("\n", " ")
    rows = list(table(parser))
    shown = "\n".join(["", "| | meaning |", "|---|---|", *rows, ""]) if rows else ""
    yield f"## {name}\n\n{described}\n{shown}"
    below = commands_of(parser)
    for sub, help_words in commands(parser):
        yield from sections(below[sub], f"{name} {sub}", help_words)


def table(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield a row for each flag and argument."""
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction | argparse._VersionAction):
            continue
        shown = action.metavar if isinstance(action.metavar, str) else (action.dest or "").upper()
        if action.choices:
            shown = "|".join(map(str, action.choices))
        takes = "" if action.nargs == 0 else f" {shown}"
        flag = f"{', '.join(action.option_strings)}{takes}" if action.option_strings else shown
        meaning = (action.help or "") % {"default": action.default, "prog": parser.prog} if action.help else ""
        yield f"| `{flag.replace('|', chr(92) + '|')}` | {meaning.replace('|', chr(92) + '|')} |"


def main() -> int:
    """Return the exit status: 0 if all pages are current or were written, else 1."""
    made = {PAGE: page(), **pages()}
    if "--keep" in sys.argv:
        for path, text in made.items():
            path.write_text(text, encoding="utf-8")
        return 0
    old = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in old:
        print(f"{path.relative_to(ROOT)} is not what the code says: run make reference")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
