"""Speculation costs more than it gains, because the batch already keeps the GPU busy."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts import EngineWindow, PodObservation
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene

MIN_RUNNING = 24.0
MIN_LOSS = 1.05
"""Seconds for each token with speculation by those without, from which it counts as a loss."""

MAX_VERIFY_SHARE = 0.9
"""Of a step: more than that cannot be verification."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare each speculating engine's time per token with an estimate of what it were without drafts."""
    for pod, engine in scene.engines():
        held = engine.speculation
        if held is None or not held.drafts or held.draft_tokens is None or held.accepted_tokens is None:
            continue
        cost = scene.normal(pod, "prefill_s_per_token")
        if engine.running is None or engine.token_gap is None or engine.token_gap.mean is None or cost is None:
            yield Missing(pod.pool, pod.address, "running requests, token gaps or a baseline of prefill are missing")
            continue
        if engine.running.mean < MIN_RUNNING:
            continue
        gain, loss = _gain(engine, held.accepted_tokens / held.drafts, held.draft_tokens / held.drafts, cost)
        if loss >= MIN_LOSS:
            yield Indication(pod.pool, pod.address, _evidence(pod, engine, gain, loss), 0.75)


def _gain(engine: EngineWindow, accepted: float, drafted: float, cost_s: float) -> tuple[float, float]:
    """Return tokens of a step, and time per token with speculation by time per token without."""
    gap = engine.token_gap.mean if engine.token_gap is not None else None
    running = engine.running.mean if engine.running is not None else 0.0
    step_s = gap or 0.0
    verify_s = min(running * drafted * cost_s, MAX_VERIFY_SHARE * step_s)
    return 1 + accepted, step_s / max((1 + accepted) * (step_s - verify_s), 1e-9)


def _evidence(pod: PodObservation, engine: EngineWindow, gain: float, loss: float) -> tuple[Evidence, ...]:
    running = None if engine.running is None else engine.running.mean
    return (
        Evidence("running requests", running, MIN_RUNNING, "limit", "", pod.address),
        Evidence("tokens of a step and request", gain, None, "", "", pod.address),
        Evidence("time per token beside no speculation", loss, 1.0, "break-even", "times", pod.address),
    )


RECIPE = Recipe(
    name="speculation_on_saturated_batch",
    title="Speculation on a saturated batch",
    question=Question.DECODE,
    severity=Severity.DEGRADING,
    symptom="With speculation on, throughput is the same or worse when many requests run.",
    looks_at=(
        "Running requests times drafted tokens, at the baseline's seconds for a prompt token, make a step so "
        "much longer that accepted tokens do not pay for it: break-even is (1 + accepted) x (step - "
        "verification) = step."
    ),
    cause="Each request adds its drafted tokens to a step that is already bound by compute.",
    first_step="Lower the drafted tokens for large batches (`num_speculative_tokens_per_batch_size`) on the named pod.",
    helped="Time per token falls at the same number of running requests.",
    wrong_if="Time per token stays with fewer drafted tokens: then the batch itself is the cost.",
    look=look,
    explains=("slower_than_peers", "kv_pressure"),
)
