"""Running requests need more KV memory than the engine has: it preempts and computes again."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts import EngineWindow, PodObservation
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene

MIN_PREEMPTIONS = 3.0
MIN_SHARE = 0.02
"""Preemptions by finished requests."""

MIN_WAITING = 0.3
"""Mean requests that wait for capacity from which a single preemption counts, and preemptions at any KV use."""

MIN_USE = 0.8
"""Peak of KV use from which preemptions count where no request waits. An engine preempts when its cache is full, but a
use that is read every few seconds is often that of the moment after.
"""

FULL = 0.97
"""KV use from which a cache counts as full where preemptions are not reported."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look at each engine's preemptions, or at its KV use and queue where they are missing."""
    for pod, engine in scene.engines():
        preemptions, usage = engine.preemptions, engine.kv_usage
        if preemptions is not None:
            if usage is not None and usage.peak < MIN_USE and not _waits(engine):
                continue
            many = preemptions >= max(MIN_PREEMPTIONS, MIN_SHARE * (engine.finished or 0.0))
            if many or (preemptions >= 1 and _is_full(engine)):
                yield Indication(pod.pool, pod.address, _evidence(pod, engine), 0.95 if usage is not None else 0.85)
        elif usage is not None:
            waiting = engine.waiting_for_capacity or engine.waiting
            if usage.mean >= FULL and waiting is not None and waiting.mean >= 1:
                yield Indication(pod.pool, pod.address, _evidence(pod, engine), 0.6)
        else:
            yield Missing(pod.pool, pod.address, "neither preemptions nor KV use are reported")


def _is_full(engine: EngineWindow) -> bool:
    """Return whether requests wait for capacity beside a cache that was nearly full."""
    return engine.kv_usage is not None and engine.kv_usage.peak >= 0.9 and _waits(engine)


def _waits(engine: EngineWindow) -> bool:
    waiting = engine.waiting_for_capacity or engine.waiting
    return waiting is not None and waiting.mean >= MIN_WAITING


def _evidence(pod: PodObservation, engine: EngineWindow) -> tuple[Evidence, ...]:
    usage, waiting = engine.kv_usage, engine.waiting_for_capacity or engine.waiting
    return (
        Evidence("preemptions", engine.preemptions, MIN_PREEMPTIONS, "limit", "in the window", pod.address),
        Evidence("KV use", None if usage is None else usage.peak, 0.9, "limit", "peak share", pod.address),
        Evidence(
            "requests that wait", None if waiting is None else waiting.mean, MIN_WAITING, "limit", "mean", pod.address
        ),
    )


RECIPE = Recipe(
    name="kv_pressure",
    title="KV cache too small for what runs",
    question=Question.DECODE,
    severity=Severity.DEGRADING,
    symptom="Time per token jumps and requests stop for seconds, while KV use stays near its maximum.",
    looks_at=(
        "`num_preemptions_total` grew by 3 or more and by 2 % of finished requests, while requests wait for capacity "
        "or `kv_cache_usage_perc` reached 0.8; or it grew at all while requests wait and KV use reached 0.9. Where "
        "preemptions are not reported: KV use of 0.97 on average and requests waiting for capacity."
    ),
    cause="More sequences run than the KV cache holds, so the engine drops some and computes their KV again later.",
    first_step="Lower `--max-num-seqs` of the named pod by a quarter, so that fewer sequences share the cache.",
    helped=(
        "`num_preemptions_total` stops growing within a minute; time per token falls while the queue may grow a little."
    ),
    wrong_if=("Preemptions go on while nothing waits: then a few very long requests fill the cache by themselves."),
    look=look,
    explains=(
        "slower_than_peers",
        "prefix_cache_thrashing",
        "decode_starved_by_prefill",
    ),
)
