"""Nearly every request has a cache salt of its own, and hits have fallen: tenants are isolated that shared prefixes."""

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
        elif normal is None:
            # Salts that were always there take nothing away.
            yield Missing(pod.pool, pod.address, "the hit rate before the salts is not known: there is no baseline")
        elif normal >= MIN_NORMAL and rate <= FALLEN * normal:
            evidence = (
                Evidence("different salts", view.salts, view.salted, "salted requests", "", pod.address),
                Evidence("hit rate", rate, normal, "baseline", "share of prompt tokens", pod.address),
            )
            yield Indication(pod.pool, pod.address, evidence)


RECIPE = Recipe(
    name="salts_split_prefixes",
    title="Salts split the prefix cache",
    question=Question.PREFILL,
    severity=Severity.DEGRADING,
    symptom="Hit rates of a pool collapse although its prompts share long prefixes.",
    looks_at=(
        "Half of the requests or more have a cache salt, which the gateway sets where tenants are isolated "
        "(`cache_isolation`), at least six in ten of them different, and the hit rate is 60 % of the baseline's or "
        "less. Without a baseline nothing is found: salts that were always there take nothing away."
    ),
    cause="Each of many small tenants has a salt of its own, which keeps equal prefixes apart.",
    first_step=(
        "Give one trust domain (`cache_isolation: NAME`) to those tenants that may share prefixes, such as all of one "
        "application: what they send can then be timed by each other."
    ),
    helped="Different salts fall to the number of trust domains, and the hit rate returns to the baseline.",
    wrong_if="Hits stay low with one trust domain: then the prompts themselves differ.",
    look=look,
    explains=("prefix_cache_thrashing", "prefix_cache_off", "slower_than_peers", "decode_starved_by_prefill"),
)
