"""`hearth simulate`: hands over to the simulator, which is found by its entry point.

The gateway must not know the simulator; who ships one says so under `hearth.commands`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import entry_points


def run(argv: Sequence[str]) -> int:
    """The exit status of the simulator's own command."""
    for found in entry_points(group="hearth.commands", name="simulate"):
        return int(found.load()(list(argv)) or 0)
    sys.stderr.write("hearth: no simulator is installed: it comes with hearth-gateway[simulate]\n")
    return 1
