"""Requests reach one pod's engine late, and its API server has CPU to spare: the way to it is slow."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts import PodObservation
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.recipes.api_server_bound import MIN_CPU, SETTLED_S, inside_s, lasts, server_cpu
from diagnosis.scene import Scene
from routing.facts import Role

MIN_LATE_S = 0.2
MIN_TIMES = 1.0
"""Seconds outside of the engine, and those by seconds within, by which even early first tokens are late."""

EARLY = 0.1
"""Quantile of first tokens that must be late: behind a pause some are, in a pod that is far away all are."""

MORE_THAN_PEERS = 3.0

MIN_REQUESTS = 10


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare the earliest first tokens at the gateway with the engine's own times, and with those of the peers."""
    for pod in scene.facts.pods:
        if pod.role is not Role.EITHER or not scene.is_settled(pod, SETTLED_S):
            continue
        outside, cpu = _outside_s(pod), server_cpu(pod)
        if outside is None or cpu is None:
            yield Missing(
                pod.pool, pod.address, "first tokens, the engine's times, or the API server's CPU are missing"
            )
            continue
        peers = scene.peer_median_of(pod, _outside_s)
        inside = inside_s(pod) or 0.0
        limit = max(MIN_LATE_S, MIN_TIMES * inside)
        if outside < limit or cpu >= MIN_CPU or not lasts(pod.requests, inside + limit):
            continue
        if peers is None:
            yield Missing(pod.pool, pod.address, "there are no peers to compare the way to the pod with")
        elif outside >= MORE_THAN_PEERS * max(peers, 0.0):
            evidence = (
                Evidence("first token outside of the engine", outside, peers, "peers", "s", pod.address),
                Evidence("CPU of the API server", cpu, MIN_CPU, "limit", "cores", pod.address),
            )
            yield Indication(pod.pool, pod.address, evidence, 0.85)


def _outside_s(pod: PodObservation) -> float | None:
    """Return the seconds of early first tokens beyond the engine's mean queue and prefill."""
    seen = None if pod.requests is None else pod.requests.first_token
    inside = inside_s(pod)
    if seen is None or inside is None or seen.count < MIN_REQUESTS:
        return None
    early = seen.quantile(EARLY)
    return None if early is None else early - inside


RECIPE = Recipe(
    name="late_to_engine",
    title="Requests reach an engine late",
    question=Question.ROUTING,
    severity=Severity.DEGRADING,
    symptom="TTFT of one pod is high from the first request on, while its engine and its API server have room.",
    looks_at=(
        "Nine in ten first tokens at the gateway come later than the engine's queue and prefill explain, by 0.2 s and "
        "by as much as both of them take, in three of four steps of 5 s, and three times as late as on the peers. The "
        "pod's API server uses less than half a core (`process_cpu_seconds_total`)."
    ),
    cause="The way to the pod is slow: name resolution, a proxy or sidecar, TLS, or a host far away.",
    first_step=(
        "Time name resolution, connect and TLS from the gateway's host to the named pod (`curl -w` with "
        "`time_namelookup`, `time_connect` and `time_appconnect`)."
    ),
    helped="One of the three times is that of the delay; without it TTFT is that of the peers.",
    wrong_if="All three are short: then a middleware within the API server waits for something else.",
    look=look,
    raise_after_s=30.0,
)
