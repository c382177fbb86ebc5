"""The API server in front of the engine is the bottleneck: requests wait before the engine sees them."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts import GatewayView, PodObservation
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene
from routing.facts import Role

MIN_HIDDEN_S = 0.2
MIN_TIMES = 1.0
"""Seconds outside of the engine, and those by seconds within, from which the API server counts as the bottleneck."""

SETTLED_S = 30.0
"""A pod must be ready for so long: what the gateway measured then belongs to the engine that runs now."""

MIN_COURSE_S = 10.0
"""Time between the first and the last step with late first tokens."""

LATE_SHARE = 0.75
"""Of the steps in which first tokens came."""

MIN_CPU = 0.5
"""Cores that the API server uses: one that uses fewer waits for something else."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare the first token as the gateway sees it with queue and prefill as the engine counts them."""
    for pod in scene.facts.pods:
        if pod.role is not Role.EITHER:
            continue
        if not scene.is_settled(pod, SETTLED_S):
            yield Missing(pod.pool, pod.address, "the pod is ready for less than half a minute")
            continue
        seen = None if pod.requests is None else pod.requests.first_token
        inside = inside_s(pod)
        if seen is None or seen.count < 5 or seen.mean is None or inside is None:
            yield Missing(pod.pool, pod.address, "first tokens, or the engine's queue and prefill times, are missing")
            continue
        typical = seen.quantile(0.5)
        hidden = (seen.mean if typical is None else min(seen.mean, typical)) - inside
        limit = max(MIN_HIDDEN_S, MIN_TIMES * inside)
        if hidden < limit:
            continue
        is_lasting = lasts(pod.requests, inside + limit)
        if is_lasting is None:
            yield Missing(pod.pool, pod.address, "first tokens came at too few times to tell a bottleneck from a pause")
        elif is_lasting:
            cpu = server_cpu(pod)
            if cpu is not None and cpu < MIN_CPU:
                yield Missing(pod.pool, pod.address, "first tokens are late, but not for want of the API server's CPU")
                continue
            evidence = (
                Evidence(
                    "first token at the gateway", seen.mean, inside, "engine's queue and prefill", "s", pod.address
                ),
                Evidence("CPU of the API server", cpu, MIN_CPU, "limit", "cores", pod.address),
            )
            yield Indication(pod.pool, pod.address, evidence, 0.65 if cpu is None else 0.85)


def lasts(view: GatewayView | None, late_s: float) -> bool | None:
    """Return whether first tokens are late all the time; None where they came at too few times.

    A process that was paused answers all that waited for it at one time, and what comes later as before.
    """
    course = None if view is None else view.first_token_course
    if not course or course[-1][0] - course[0][0] < MIN_COURSE_S:
        return None
    late = [at_s for at_s, seconds in course if seconds >= late_s]
    return len(late) >= LATE_SHARE * len(course) and late[-1] - late[0] >= MIN_COURSE_S


def server_cpu(pod: PodObservation) -> float | None:
    """Return the cores that the API server used; None where its page does not tell."""
    known = ((each.server_cpu_s, each.length_s) for each in pod.engines)
    used = [seconds / length_s for seconds, length_s in known if seconds is not None and length_s > 0]
    return sum(used) if used else None


def inside_s(pod: PodObservation) -> float | None:
    """Return the mean seconds of a request in the engine's queue and prefill; None for want of figures."""
    queue = prefill = count = 0.0
    for engine in pod.engines:
        if engine.queue is None or engine.prefill is None or engine.prefill.count < 1:
            return None
        queue += engine.queue.total
        prefill += engine.prefill.total
        count += engine.prefill.count
    return (queue + prefill) / count if count >= 5 else None


RECIPE = Recipe(
    name="api_server_bound",
    title="The API server is the bottleneck",
    question=Question.PREFILL,
    severity=Severity.DEGRADING,
    symptom="TTFT is high while engines have short queues and spare capacity.",
    looks_at=(
        "Mean and median of the first token at the gateway exceed `request_queue_time_seconds` plus "
        "`request_prefill_time_seconds` by 0.2 s and by as much as both of them: a delay that few "
        "requests meet raises the mean alone. First tokens are late in three of four steps of 5 s, over 10 s or "
        "more: behind a pause all of them come at one time. The pod is ready for half a minute. Its API server uses "
        "half a core or more (`process_cpu_seconds_total`); the finding is not sure where the page has no such figure, "
        "as with several API servers."
    ),
    cause="Parsing, templating and tokenising in one process take longer than requests arrive.",
    first_step="Raise `--api-server-count` of the named pod by one.",
    helped="The gap between the gateway's TTFT and the engine's own times shrinks by half or more.",
    wrong_if="The gap stays: then the network between gateway and pod holds requests up.",
    look=look,
)
