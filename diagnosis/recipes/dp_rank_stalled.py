"""One data-parallel rank makes no progress while its siblings do."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.recipes.engine_stalled import stands_idle_under_load
from diagnosis.scene import Scene


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look for ranks with running requests and without tokens."""
    for pod in scene.facts.pods:
        if len(pod.engines) < 2:
            continue
        verdicts = {engine.rank: stands_idle_under_load(engine) for engine in pod.engines}
        if all(verdict is None for verdict in verdicts.values()):
            yield Missing(pod.pool, pod.address, "running requests or tokens are not reported")
        for rank, verdict in verdicts.items():
            if verdict:
                evidence = (
                    Evidence(f"tokens of rank {rank}", 0.0, None, "", "in the window", pod.address),
                    Evidence("ranks of the pod", float(len(verdicts)), None, "", "", pod.address),
                )
                yield Indication(pod.pool, pod.address, evidence, 0.95)
                break


RECIPE = Recipe(
    name="dp_rank_stalled",
    title="A data-parallel rank makes no progress",
    question=Question.DECODE,
    severity=Severity.FAILING,
    symptom="Requests on one rank hang; other ranks of the same pod answer, and `/health` returns 200.",
    looks_at=(
        "A rank has running requests through the window, and neither prompt nor generated tokens grew, nor did KV use."
    ),
    cause=(
        "The engine process of that rank is blocked: a collective operation that waits for a peer, or a "
        "stopped process."
    ),
    first_step="Drain the named pod, then read the stack of the rank's engine process before anything else is changed.",
    helped="Requests succeed on the remaining pods at once; the stack names the operation that waits.",
    wrong_if="Tokens of the rank grow again without a change: then a single very long step was seen.",
    look=look,
    explains=("idle_ranks", "slower_than_peers"),
)
