"""Commands of `hearth` that stand outside the gateway: found by their entry point, never imported.

A package that ships one names it in the group `hearth.commands`; the function takes the arguments after its name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

_SIMULATOR = "no simulator is installed: run pip install --force-reinstall hearth-gateway"

COMES_WITH = dict.fromkeys(("demo", "pod", "shadow", "simulate", "profile"), _SIMULATOR)


def run(name: str, argv: Sequence[str]) -> int:
    """Run a command. Returns its exit status, or 1 if it is not installed."""
    for found in entry_points(group="hearth.commands", name=name):
        return int(found.load()(list(argv)) or 0)
    sys.stderr.write(f"hearth: {COMES_WITH.get(name, f'no command {name} is installed')}\n")
    return 1
