"""Some data-parallel ranks have no requests while others are busy; with expert parallelism all of them step."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.finding import Evidence, Question, Severity
from diagnosis.levels import running
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene

BUSY, IDLE = 3.0, 0.1
"""Mean running requests."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare the ranks of each pod that has several."""
    for pod in scene.facts.pods:
        if len(pod.engines) < 2 or not scene.is_settled(pod):
            continue
        loads = [value for engine in pod.engines if (value := running(engine)) is not None]
        if len(loads) < len(pod.engines):
            yield Missing(pod.pool, pod.address, "running requests of some ranks are not reported")
        elif max(loads) >= BUSY and min(loads) <= IDLE:
            evidence = (
                Evidence("running on the busiest rank", max(loads), min(loads), "idlest rank", "requests", pod.address),
            )
            is_coupled = pod.flags is not None and bool(pod.flags.expert_parallel)
            yield Indication(pod.pool, pod.address, evidence, 0.9 if is_coupled else 0.75)


RECIPE = Recipe(
    name="idle_ranks",
    title="Idle ranks step with busy ones",
    question=Question.ROUTING,
    severity=Severity.DEGRADING,
    symptom="A data-parallel pod is slow although part of its GPUs do no useful work.",
    looks_at="One rank runs three requests or more on average while another one runs none through the window.",
    cause=(
        "Requests are pinned to a few ranks; with expert parallelism the idle ranks must join every step of "
        "the busy ones."
    ),
    first_step=(
        "Let requests be spread over the ranks: remove what pins them (a `X-data-parallel-rank` header, or a "
        "rank list)."
    ),
    helped="Running requests of the ranks come within a factor of two, and time per token falls.",
    wrong_if="Loads even out and time per token stays: then the step itself is slow.",
    look=look,
    raise_after_s=30.0,
    explains=("slower_than_peers",),
)
