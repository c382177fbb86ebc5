"""Chunks of prefill are too large: each of them holds up every stream of the engine."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts import PodObservation
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.levels import stalled_share
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.recipes.chunked_prefill_off import MIN_STALLED
from diagnosis.scene import Scene
from routing.facts import Role

MANY_TIMES = 2.0
"""Budget or step size beside that of peers from which chunks count as coarse."""

LARGE_TOKENS = 16_384
"""Budget from which chunks count as coarse where there are no peers."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look for engines whose token gaps have a tail and whose step budget exceeds that of their peers."""
    for pod in scene.facts.pods:
        if pod.role is Role.PREFILL or (pod.flags is not None and pod.flags.chunked_prefill is False):
            continue
        shares = [share for engine in pod.engines if (share := stalled_share(engine)) is not None]
        if not shares:
            yield Missing(pod.pool, pod.address, "too few token gaps are reported")
            continue
        size, normal = _sizes(scene, pod)
        if size is None:
            yield Missing(pod.pool, pod.address, "neither `--max-num-batched-tokens` nor tokens of a step are known")
            continue
        if max(shares) < MIN_STALLED:
            continue
        if size >= MANY_TIMES * normal if normal else size >= LARGE_TOKENS:
            evidence = (
                Evidence(
                    "tokens of a step", size, normal or LARGE_TOKENS, "peers" if normal else "limit", "", pod.address
                ),
                Evidence("decode time in stalls", max(shares), MIN_STALLED, "limit", "share", pod.address),
            )
            yield Indication(pod.pool, pod.address, evidence, 0.9 if pod.flags is not None else 0.7)


def _sizes(scene: Scene, pod: PodObservation) -> tuple[float | None, float | None]:
    """Return the tokens of a pod's steps and of its peers': budgets, or what large steps have where one is unknown.

    A budget is compared with budgets alone: steps of a pod whose budget is not known are mostly far below it.
    """
    for read in (_budget, _large_step):
        size, normal = read(pod), scene.peer_median_of(pod, read)
        if size is not None and normal is not None:
            return size, normal
    budget = _budget(pod)
    return (_large_step(pod) if budget is None else budget), None


def _budget(pod: PodObservation) -> float | None:
    return None if pod.flags is None else pod.flags.max_num_batched_tokens


def _large_step(pod: PodObservation) -> float | None:
    sizes = (each.iteration_tokens.quantile(0.99) for each in pod.engines if each.iteration_tokens is not None)
    return max((size for size in sizes if size is not None), default=None)


RECIPE = Recipe(
    name="coarse_chunks",
    title="Chunks of prefill are too large",
    question=Question.DECODE,
    severity=Severity.DEGRADING,
    symptom="Streams pause for the time of one chunk whenever a long prompt is computed beside them.",
    looks_at=(
        "`--max-num-batched-tokens`, or the 99th percentile of `iteration_tokens_total`, is twice that of the"
        " pool's other pods (16,384 without peers), and 5 % of decode time or more is spent in stalls: gaps of "
        "0.2 s and four medians of `inter_token_latency_seconds`."
    ),
    cause="A step computes as many prompt tokens as its budget allows, and every stream waits for the step to end.",
    first_step="Halve `--max-num-batched-tokens` of the named pod.",
    helped="Decode time in stalls halves; TTFT of long prompts rises by a few steps at most.",
    wrong_if="Stalls stay with small steps: then steps are slow for another reason.",
    look=look,
    explains=("decode_starved_by_prefill", "slower_than_peers"),
)
