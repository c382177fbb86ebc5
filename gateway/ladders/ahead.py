"""The next rung's request, made before it is known whether it is needed. A value."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.ladders.rung_judge import RungJudge
from gateway.ladders.shell import Shell
from gateway.spine.carrier import Beside
from routing.request import Request


@dataclass(frozen=True, slots=True)
class Ahead:
    """Of the rung `at`, counted from the cheapest."""

    at: int
    request: Request
    judge: RungJudge | None
    shell: Shell
    """Makes the requests of this rung and of those above it, for `carrier`."""
    carrier: Beside
