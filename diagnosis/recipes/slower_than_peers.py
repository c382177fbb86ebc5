"""A pod is slower than its peers at equal load, and nothing else explains it."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.finding import Evidence, Question, Severity
from diagnosis.levels import computed_per_s, gap_s, pod_figure, prefill_s_per_token, running
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene
from routing.facts import Role

SLOWER = 1.5
MORE_LOAD = 1.5
"""Running requests or computed prompt tokens beside the peers' from which load explains the speed."""

MIN_RUNNING = 0.5


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare token gaps, and seconds for each prompt token, with those of the peers."""
    for pod in scene.facts.pods:
        if not scene.is_settled(pod) or not scene.has_peers(pod):
            continue
        gap, normal_gap = pod_figure(pod, gap_s), scene.peer_median(pod, gap_s)
        cost, normal_cost = pod_figure(pod, prefill_s_per_token), scene.peer_median(pod, prefill_s_per_token)
        decodes = pod.role is not Role.PREFILL
        slow_decode = None if gap is None or not normal_gap else gap >= SLOWER * normal_gap
        slow_prefill = None if cost is None or not normal_cost else cost >= SLOWER * normal_cost
        if decodes and slow_decode is None:
            yield Missing(pod.pool, pod.address, "token gaps of the pod or its peers are missing, or too few")
            continue
        is_slow = slow_decode and slow_prefill is not False if decodes else slow_prefill
        if is_slow and _is_equally_loaded(scene, pod.address):
            evidence = (
                Evidence("token gap", gap, normal_gap, "peers", "s", pod.address),
                Evidence("prefill of a prompt token", cost, normal_cost, "peers", "s", pod.address),
            )
            yield Indication(pod.pool, pod.address, evidence, 0.85 if slow_decode and slow_prefill else 0.65)


def _is_equally_loaded(scene: Scene, address: str) -> bool:
    """Return whether neither running requests nor prompts explain the difference."""
    pod = next(each for each in scene.facts.pods if each.address == address)
    prompts, normal_prompts = pod_figure(pod, computed_per_s), scene.peer_median(pod, computed_per_s)
    if prompts is not None and normal_prompts is not None and prompts >= MORE_LOAD * max(normal_prompts, 50.0):
        return False
    load, normal_load = pod_figure(pod, running), scene.peer_median(pod, running)
    if load is None or normal_load is None:
        return True
    # A slower pod has more running requests at equal arrivals: only what exceeds its slowness counts as load.
    gap, normal_gap = pod_figure(pod, gap_s), scene.peer_median(pod, gap_s)
    slowness = gap / normal_gap if gap and normal_gap else SLOWER
    return load <= MORE_LOAD * slowness * max(normal_load, MIN_RUNNING)


RECIPE = Recipe(
    name="slower_than_peers",
    title="A pod is slower than its peers",
    question=Question.DECODE,
    severity=Severity.DEGRADING,
    symptom="One pod takes longer for each token and each prompt than others of its pool under equal load.",
    looks_at=(
        "The mean token gap and the seconds of prefill for each computed token are 1.5 times the peers' "
        "median, while neither running requests nor computed prompt tokens explain it."
    ),
    cause="The GPU runs below its clock (heat, power limit), or another process uses it.",
    first_step="Read clocks, power limit and processes of the named pod's GPUs (`nvidia-smi -q -d CLOCK,POWER,PIDS`).",
    helped="The limit or process is named; without it token gaps equal those of the peers.",
    wrong_if="Clocks are normal and nothing else runs: then compare kernels and builds with a peer's.",
    look=look,
    raise_after_s=30.0,
)
