"""Cached prefixes are evicted before they are used again."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts import EngineWindow, PodObservation
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.levels import MIN_QUERIES, actual_hit_rate, hit_rate, pod_figure, predicted_hit_rate
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.recipes.salts_split_prefixes import has_many_salts
from diagnosis.scene import Scene

SETTLED_S = 120.0
MIN_NORMAL = 0.2
FALLEN = 0.6
"""Hit rate beside what peers, baseline or the gateway's prediction say."""

LONGER = 1.5
"""Mean prompt length beside the peers' from which hit rates cannot be compared."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare hits with what they should be, on pods whose cache is on."""
    for pod in scene.facts.pods:
        if not scene.is_settled(pod, SETTLED_S) or (pod.flags is not None and pod.flags.prefix_caching is False):
            continue
        rate = pod_figure(pod, hit_rate)
        if rate is None:
            rate = actual_hit_rate(pod.requests)
        if rate is None:
            yield Missing(pod.pool, pod.address, "lookups in the prefix cache are missing, or too few")
            continue
        if has_many_salts(pod) or (rate == 0.0 and (pod.flags is None or pod.flags.prefix_caching is None)):
            continue
        found = _fallen(scene, pod, rate)
        if found is not None:
            evidence, is_sure = found
            yield Indication(pod.pool, pod.address, evidence, 0.85 if is_sure else 0.65)


def _fallen(scene: Scene, pod: PodObservation, rate: float) -> tuple[tuple[Evidence, ...], bool] | None:
    """Return evidence that hits have fallen, and whether two comparisons agree."""
    predicted = predicted_hit_rate(pod.requests)
    if _is_diluted(scene, pod):
        return None
    references = (
        ("peers", scene.peer_median(pod, hit_rate)),
        ("baseline", scene.normal(pod, "hit_rate")),
        ("the gateway's prediction", predicted),
    )
    below = [
        Evidence("hit rate", rate, normal, basis, "share of prompt tokens", pod.address)
        for basis, normal in references
        if normal is not None and normal >= MIN_NORMAL and rate <= FALLEN * normal
    ]
    known = sum(normal is not None for _, normal in references)
    if not below or (known >= 2 and len(below) < 2):
        return None
    return tuple(below), len(below) >= 2


def _is_diluted(scene: Scene, pod: PodObservation) -> bool:
    """Return whether the pod finds as many tokens as its peers, computes no larger share of its prompts because a store
    gives it the rest, or has far longer prompts than they have.
    """
    found, normal = pod_figure(pod, _found), scene.peer_median(pod, _found)
    if found is not None and normal is not None and found >= FALLEN * normal:
        return True
    computed, peers_compute = pod_figure(pod, _computed_share), scene.peer_median(pod, _computed_share)
    if computed is not None and peers_compute is not None and computed <= peers_compute:
        return True
    length, peer_length = pod_figure(pod, _prompt_length), scene.peer_median(pod, _prompt_length)
    return length is not None and peer_length is not None and length >= LONGER * peer_length


def _found(engine: EngineWindow) -> float | None:
    return engine.cache_hits if engine.cache_hits is not None else engine.cached_tokens


def _computed_share(engine: EngineWindow) -> float | None:
    if engine.computed_tokens is None or not engine.prompt_tokens or engine.prompt_tokens < MIN_QUERIES:
        return None
    return engine.computed_tokens / engine.prompt_tokens


def _prompt_length(engine: EngineWindow) -> float | None:
    if engine.prompt_lengths is not None and engine.prompt_lengths.count >= 5:
        return engine.prompt_lengths.mean
    if engine.prompt_tokens is None or not engine.finished or engine.finished < 5:
        return None
    return engine.prompt_tokens / engine.finished


RECIPE = Recipe(
    name="prefix_cache_thrashing",
    title="The prefix cache thrashes",
    question=Question.PREFILL,
    severity=Severity.DEGRADING,
    symptom="The hit rate of a pod falls to a fraction of its peers', with the same traffic and settings.",
    looks_at=(
        "`prefix_cache_hits_total` by `prefix_cache_queries_total` is 60 % or less of two of: the peers', the "
        "baseline's, the gateway's prediction. The cache is on, requests do not bring salts of their own, and the "
        "pod finds 60 % as many tokens as its peers or fewer and computes a larger share of its prompts than they do "
        "(a store may give it the rest), in prompts of their length."
    ),
    cause="The prefixes in use need more KV blocks than the pod has, so they are evicted before they are used again.",
    first_step="Offload KV to host memory on the named pod (`--kv-offloading-size`).",
    helped="External hits take over: `external_prefix_cache_hits_total` grows and computed prompt tokens fall.",
    wrong_if="The store finds nothing either: then the prompts do not repeat, or differ from their first block on.",
    look=look,
    raise_after_s=30.0,
    explains=("slower_than_peers",),
)
