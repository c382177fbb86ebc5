"""Clocks of hosts differ: leases, tokens and times of different hosts cannot be compared."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene

MAX_OFFSET_S = 1.0


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look at the clock offsets of hosts and pods."""
    offsets = scene.facts.clock_offsets_s
    if not offsets:
        yield Missing("", "", "clock offsets are not known")
        return
    pools = {pod.address: pod.pool for pod in scene.facts.pods}
    for name, offset in offsets.items():
        if abs(offset) >= MAX_OFFSET_S:
            evidence = (Evidence("clock offset", offset, MAX_OFFSET_S, "limit", "s", name),)
            yield Indication(pools.get(name, ""), name, evidence, 0.9)


RECIPE = Recipe(
    name="clocks_apart",
    title="Clocks are apart",
    question=Question.ROUTING,
    severity=Severity.ADVICE,
    symptom="Leases end early or late, tokens are rejected as expired, and traces show negative times.",
    looks_at="The clock of a host differs from the gateway's by one second or more.",
    cause="Time synchronisation of the named host does not run or cannot reach its source.",
    first_step="Check time synchronisation on the named host (`chronyc tracking` or `timedatectl`).",
    helped="The offset falls below 50 ms within minutes.",
    wrong_if="All hosts but the gateway's agree: then the gateway's own clock is wrong.",
    look=look,
)
