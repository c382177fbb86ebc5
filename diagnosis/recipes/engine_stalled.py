"""An engine makes no progress although requests run on it."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts import EngineWindow
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene

MIN_WINDOW_S = 15.0


def stands_idle_under_load(engine: EngineWindow) -> bool | None:
    """Return whether requests ran through the window while nothing was computed; None where figures are missing."""
    if engine.running is None or engine.generation_tokens is None or engine.length_s < MIN_WINDOW_S:
        return None
    if engine.kv_usage is not None and engine.kv_usage.peak > engine.kv_usage.low:
        # Tokens of a prompt are counted when all of it is computed; its KV grows with each chunk.
        return False
    computed = engine.computed_tokens if engine.computed_tokens is not None else (engine.prompt_tokens or 0.0)
    return engine.running.low >= 1 and engine.generation_tokens == 0 and computed == 0


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look at pods with one engine; several ranks are the affair of `dp_rank_stalled`."""
    for pod in scene.facts.pods:
        if len(pod.engines) != 1:
            continue
        engine = pod.engines[0]
        verdict = stands_idle_under_load(engine)
        if verdict is None:
            yield Missing(pod.pool, pod.address, "running requests or tokens are not reported")
        elif verdict:
            running = None if engine.running is None else engine.running.mean
            evidence = (
                Evidence("running requests", running, None, "", "", pod.address),
                Evidence("tokens", 0.0, None, "", "in the window", pod.address),
            )
            yield Indication(pod.pool, pod.address, evidence, 0.95)


RECIPE = Recipe(
    name="engine_stalled",
    title="The engine makes no progress",
    question=Question.DECODE,
    severity=Severity.FAILING,
    symptom="Streams on one pod receive no tokens, and its `/health` still returns 200.",
    looks_at=(
        "Requests run through a window of 15 s or more, and neither prompt nor generated tokens grew, nor did KV use."
    ),
    cause="The engine process is blocked or stopped behind a living API server.",
    first_step="Drain the named pod, then read the stack of its engine process before anything else is changed.",
    helped="Requests succeed on the remaining pods at once; the stack names the call that blocks.",
    wrong_if="Tokens grow again without a change: then one very long step was seen.",
    look=look,
    explains=("slower_than_peers", "kv_pressure", "transfers_stalled"),
)
