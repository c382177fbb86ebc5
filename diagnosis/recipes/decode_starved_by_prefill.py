"""Prompts take most steps of an engine that should decode: every token waits for a chunk."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts import PodObservation
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.levels import computed_per_output, computed_per_s, gap_s, pod_figure
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene
from routing.facts import Role

SLOWER = 2.0
MORE_PREFILL = 2.0

MORE_FOR_EACH_OUTPUT = 1.5
"""Prompt tokens computed for each generated one, beside the baseline: where they are as before, more requests came."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare token gaps and computed prompt tokens with peers, or with the baseline where the whole pool changed."""
    for pod in scene.facts.pods:
        if pod.role is Role.PREFILL:
            continue
        gap, computed = pod_figure(pod, gap_s), pod_figure(pod, computed_per_s)
        if gap is None or computed is None:
            yield Missing(pod.pool, pod.address, "token gaps or computed prompt tokens are missing, or too few")
            continue
        for basis, normal_gap, normal_computed in _references(scene, pod):
            if normal_gap is None or normal_computed is None:
                continue
            if basis == "baseline" and not _has_other_traffic(scene, pod):
                continue
            if gap >= SLOWER * normal_gap and computed >= MORE_PREFILL * max(normal_computed, 1.0):
                evidence = (
                    Evidence("token gap", gap, normal_gap, basis, "s", pod.address),
                    Evidence("prompt tokens computed", computed, normal_computed, basis, "tokens/s", pod.address),
                )
                # Against the baseline, other traffic may be the cause: then nothing is wrong with the pod.
                yield Indication(pod.pool, pod.address, evidence, 0.8 if basis == "peers" else 0.6)
                break


def _has_other_traffic(scene: Scene, pod: PodObservation) -> bool:
    share, normal = pod_figure(pod, computed_per_output), scene.normal(pod, "computed_per_output")
    return share is not None and normal is not None and share >= MORE_FOR_EACH_OUTPUT * normal


def _references(scene: Scene, pod: PodObservation) -> Iterator[tuple[str, float | None, float | None]]:
    yield "peers", scene.peer_median(pod, gap_s), scene.peer_median(pod, computed_per_s)
    yield "baseline", scene.normal(pod, "gap_s"), scene.normal(pod, "computed_per_s")


RECIPE = Recipe(
    name="decode_starved_by_prefill",
    title="Decode is starved by prefill",
    question=Question.DECODE,
    severity=Severity.DEGRADING,
    symptom="All streams of a pod are slow at once, while it computes far more prompt tokens than its peers.",
    looks_at=(
        "The mean of `inter_token_latency_seconds` and the rate of computed prompt tokens "
        "(`prompt_tokens_by_source_total{source=local_compute}`) are both twice those of the peers; or twice those of "
        "the baseline, with 1.5 times its prompt tokens for each generated one: more of the same traffic does not "
        "count."
    ),
    cause="Long prompts arrive faster than they can be computed beside decoding, so nearly every step carries a chunk.",
    first_step="Set `--long-prefill-token-threshold` of the named pod to a quarter of its step budget.",
    helped="Token gaps fall by half or more within a minute; TTFT of the long prompts rises.",
    wrong_if="Prompt tokens computed fall while streams stay slow: then steps themselves are slower.",
    look=look,
    raise_after_s=30.0,
    explains=("slower_than_peers", "prefix_cache_thrashing"),
)
