"""Cache salts differ between requests that could share prefixes."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts import PodObservation
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.levels import hit_rate, pod_figure
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene

MIN_SALTED, MIN_SALTS = 0.5, 0.6
"""Share of requests with a salt, and different salts by salted requests."""

MIN_NORMAL, FALLEN = 0.15, 0.6


def has_many_salts(pod: PodObservation) -> bool:
    """Return whether nearly every request of a pod has a salt of its own; False where that is not known."""
    view = pod.requests
    if view is None or not view.requests or view.requests < 5 or view.salted is None or view.salts is None:
        return False
    return view.salted >= MIN_SALTED * view.requests and view.salts >= MIN_SALTS * view.salted


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look for pods where nearly every request has a salt of its own and hits have fallen."""
    for pod in scene.facts.pods:
        view = pod.requests
        if view is None or view.salted is None or view.salts is None:
            yield Missing(pod.pool, pod.address, "salts of requests are not counted")
            continue
        if not has_many_salts(pod):
            continue
        rate, normal = pod_figure(pod, hit_rate), scene.normal(pod, "hit_rate")
        if rate is None:
            yield Missing(pod.pool, pod.address, "lookups in the prefix cache are missing, or too few")
        elif normal is None or (normal >= MIN_NORMAL and rate <= FALLEN * normal):
            evidence = (
                Evidence("different salts", view.salts, view.salted, "salted requests", "", pod.address),
                Evidence("hit rate", rate, normal, "baseline", "share of prompt tokens", pod.address),
            )
            yield Indication(pod.pool, pod.address, evidence, 0.9 if normal is not None else 0.6)


RECIPE = Recipe(
    name="salts_split_prefixes",
    title="Salts split the prefix cache",
    question=Question.PREFILL,
    severity=Severity.DEGRADING,
    symptom="Hit rates of a pool collapse although its prompts share long prefixes.",
    looks_at=(
        "Half of the requests or more have a cache salt, at least six in ten of them different, and the hit "
        "rate is 60 % of the baseline's or less."
    ),
    cause="A salt for each request or session keeps equal prefixes apart.",
    first_step="Give requests of one tenant one salt (the tenant's isolation), instead of one a request or session.",
    helped="Different salts fall to the number of tenants, and the hit rate returns to the baseline.",
    wrong_if="Hits stay low with one salt a tenant: then the prompts themselves differ.",
    look=look,
    explains=("prefix_cache_thrashing", "prefix_cache_off", "slower_than_peers", "decode_starved_by_prefill"),
)
