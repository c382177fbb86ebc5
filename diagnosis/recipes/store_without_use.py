"""A KV store behind the engines finds next to nothing, or takes longer to load than the engine to compute."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts import EngineWindow, PodObservation
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.levels import store_s_per_token
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene
from routing.facts import Role

MIN_QUERIED = 20_000.0
MIN_FOUND = 0.02
SETTLED_S = 120.0

MIN_TURNOVER = 4.0
"""Tokens looked up since the engine's start by those of its KV cache: before, most of what is looked up is new."""

KV_TOKENS = 100_000.0
"""Of an engine whose KV cache is of unknown size."""

SLOWER_THAN_COMPUTING, SLOWER = 1.5, 4.0
"""Seconds to load a token by those to compute it, and by those of peers or baseline."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look at what stores are queried, what they find, and what loads take."""
    for pod, engine in scene.engines():
        offloads = pod.flags is not None and bool(pod.flags.offloading_gib)
        if engine.store_queries is None or engine.store_hits is None:
            if offloads:
                yield Missing(pod.pool, pod.address, "lookups in the store are not reported")
            continue
        if pod.role is not Role.EITHER or not scene.is_settled(pod, SETTLED_S):
            continue
        queried, found = engine.store_queries, engine.store_hits
        if queried >= MIN_QUERIED and found < MIN_FOUND * queried:
            if engine.store_queries_since_start is None:
                yield Missing(pod.pool, pod.address, "lookups in the store since the engine's start are not known")
                continue
            size = None if pod.flags is None else pod.flags.kv_capacity_tokens
            if engine.store_queries_since_start < MIN_TURNOVER * (size or KV_TOKENS):
                yield Missing(pod.pool, pod.address, "too little was looked up in the store since the engine's start")
                continue
            evidence = (Evidence("tokens found in the store", found, queried, "tokens looked up", "", pod.address),)
            # Where the peers' stores find nothing either, the prompts may be what has changed.
            peers = scene.peer_median(pod, _found_share)
            yield Indication(
                pod.pool, pod.address, evidence, 0.85 if peers is not None and peers >= MIN_FOUND else 0.65
            )
        elif (slow := _slow_load(scene, pod, engine)) is not None:
            yield Indication(pod.pool, pod.address, (slow,), 0.75)


def _found_share(engine: EngineWindow) -> float | None:
    if not engine.store_queries or engine.store_hits is None:
        return None
    return engine.store_hits / engine.store_queries


def _slow_load(scene: Scene, pod: PodObservation, engine: EngineWindow) -> Evidence | None:
    load = store_s_per_token(engine)
    if load is None:
        return None
    for basis, normal, times in (
        ("computing it", scene.normal(pod, "prefill_s_per_token"), SLOWER_THAN_COMPUTING),
        ("baseline", scene.normal(pod, "store_s_per_token"), SLOWER),
        ("peers", scene.peer_median(pod, store_s_per_token), SLOWER),
    ):
        if normal is not None and load >= times * normal:
            return Evidence("load of a token from the store", load, normal, basis, "s", pod.address)
    return None


RECIPE = Recipe(
    name="store_without_use",
    title="The KV store does not help",
    question=Question.PREFILL,
    severity=Severity.DEGRADING,
    symptom="A KV store or offloading is configured, and TTFT is no better than without it.",
    looks_at=(
        "`external_prefix_cache_hits_total` is below 2 % of 20,000 or more tokens looked up, on an engine that has "
        "looked up four times the tokens of its KV cache since its start; it is not sure where the peers' stores find "
        "nothing either. Or loading a token takes 1.5 times as long as computing it, or four times as long as the "
        "baseline's or the peers' loads."
    ),
    cause=(
        "The store is smaller than what is evicted between two uses, is keyed differently, or is slower than prefill."
    ),
    first_step="Double the size of the store (`--kv-offloading-size`) of the named pod.",
    helped="External hits exceed 5 % of the tokens looked up, and computed prompt tokens fall.",
    wrong_if="Hits stay near zero in a larger store: then prompts do not repeat, and the store can be removed.",
    look=look,
    raise_after_s=30.0,
)
