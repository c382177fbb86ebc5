"""Transfers of KV wait for each other: the decode side asks for more than its link carries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diagnosis.facts import PodObservation
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene
from routing.facts import Role

MIN_QUEUED = 1.5
MIN_DEFERRED = 3.0
"""Mean requests that wait for a transfer to begin; and that wait for KV at all, where stages are not reported."""


UNSURE = 0.65
"""Confidence where all decode pods of a pool have such a queue: then what they fetch from may be slow."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look at requests that wait for their transfer to begin."""
    everywhere = {pool for pool, pods in scene.pools.items() if _is_everywhere(pods)}
    for pod, engine in scene.engines():
        queued, deferred = engine.fetches_queued, engine.waiting_deferred
        if queued is None and deferred is None:
            if pod.role is Role.DECODE:
                yield Missing(pod.pool, pod.address, "requests that wait for KV are not reported")
        elif queued is not None:
            if queued.mean >= MIN_QUEUED:
                evidence = (Evidence("transfers that wait", queued.mean, MIN_QUEUED, "limit", "requests", pod.address),)
                yield Indication(pod.pool, pod.address, evidence, UNSURE if pod.pool in everywhere else 0.9)
        elif deferred is not None and deferred.mean >= MIN_DEFERRED and engine.transfers is not None:
            evidence = (Evidence("requests without KV", deferred.mean, MIN_DEFERRED, "limit", "", pod.address),)
            yield Indication(pod.pool, pod.address, evidence, 0.6)


def _is_everywhere(pods: Sequence[PodObservation]) -> bool:
    queues = [
        any(each.fetches_queued is not None and each.fetches_queued.mean >= MIN_QUEUED for each in pod.engines)
        for pod in pods
        if pod.role is Role.DECODE
    ]
    return len(queues) > 1 and all(queues)


RECIPE = Recipe(
    name="transfer_queue",
    title="KV transfers wait for each other",
    question=Question.TRANSFER,
    severity=Severity.DEGRADING,
    symptom="In split pools TTFT grows with arrivals while prefill and decode engines have room.",
    looks_at=(
        "`num_requests_kv_fetch_by_stage{stage=waiting_to_start}` is 1.5 or more on average. Without stages: "
        "three or more requests are deferred on an engine that fetches KV. It is not sure where all decode pods of a "
        "pool have such a queue."
    ),
    cause="More KV is sent to the named decode pod than its network card carries.",
    first_step="Spread decoding: let the gateway place part of the named pod's requests on other decode pods.",
    helped="Requests that wait for a transfer fall below one within a minute.",
    wrong_if=(
        "The queue stays with fewer requests, or all decode pods have one: then transfers are slow or fail, at either "
        "end."
    ),
    look=look,
    raise_after_s=30.0,
    explains=("transfers_stalled", "kv_pressure"),
)
