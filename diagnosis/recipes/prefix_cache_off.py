"""The prefix cache of an engine is disabled: every prompt is computed from its first token."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts import PREFIX_CACHING, PodObservation
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.levels import MIN_QUERIES, hit_rate, never_generates, pod_figure
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene

MIN_NORMAL = 0.15
"""Hit rate of peers or baseline that shows that there is something to find."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look at the flag, or at counters that never find anything."""
    for pod in scene.facts.pods:
        flag = None if pod.flags is None else pod.flags.prefix_caching
        if never_generates(pod):
            continue
        if flag is False:
            if _is_wanted(scene, pod):
                evidence = (Evidence("prefix caching", "off", "on", "pool", "", pod.address),)
                yield Indication(pod.pool, pod.address, evidence, 0.95)
        elif flag is None:
            yield from _by_counters(scene, pod)


def _is_wanted(scene: Scene, pod: PodObservation) -> bool:
    if PREFIX_CACHING in scene.facts.wanted_features.get(pod.pool, frozenset()):
        return True
    others = [other for other in scene.pools[pod.pool] if other.flags is not None and other.flags.prefix_caching]
    return bool(others) or (scene.normal(pod, "hit_rate") or 0.0) >= MIN_NORMAL


def _by_counters(scene: Scene, pod: PodObservation) -> Iterator[Indication | Missing]:
    looked_up = [each for each in pod.engines if each.cache_queries is not None and each.prompt_tokens is not None]
    if not looked_up:
        yield Missing(pod.pool, pod.address, "neither the flag nor lookups in the prefix cache are known")
        return
    queried = sum(each.cache_queries or 0.0 for each in looked_up)
    prompts = sum(each.prompt_tokens or 0.0 for each in looked_up)
    rate = pod_figure(pod, hit_rate)
    normal = max(scene.normal(pod, "hit_rate") or 0.0, scene.peer_median(pod, hit_rate) or 0.0)
    never_queried = queried == 0 and prompts >= MIN_QUERIES
    never_found = rate == 0.0 and normal >= MIN_NORMAL and scene.is_settled(pod)
    if never_queried or never_found:
        evidence = (
            Evidence("prompt tokens looked up", queried, prompts, "prompt tokens", "", pod.address),
            Evidence("hit rate", rate, normal, "peers and baseline", "", pod.address),
        )
        yield Indication(pod.pool, pod.address, evidence, 0.8 if never_queried else 0.65)


RECIPE = Recipe(
    name="prefix_cache_off",
    title="The prefix cache is disabled",
    question=Question.PREFILL,
    severity=Severity.DEGRADING,
    symptom="TTFT of follow-up turns and shared prompts is as high as that of new ones, on one pod or pool.",
    looks_at=(
        "`cache_config_info{enable_prefix_caching}` is False where other pods, the baseline or the gateway's "
        "configuration have it. Without the label: prompts are served and nothing is ever looked up, or "
        "nothing is ever found. Pods that have never generated a token, as those that make vectors, do not count."
    ),
    cause="The pod was started with `--no-enable-prefix-caching`, or its connector turned the cache off.",
    first_step="Start the named pod with `--enable-prefix-caching`.",
    helped="`prefix_cache_hits_total` grows, and the pod's hit rate reaches that of its peers in minutes.",
    wrong_if="The cache is on and hits stay at zero: then prompts differ from their first block on (salts, templates).",
    look=look,
    explains=("prefix_cache_thrashing", "slower_than_peers", "decode_starved_by_prefill", "coarse_chunks"),
)
