"""Prefill pods are ready and get no work, while decode pods compute prompts themselves."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts import PodObservation
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene
from routing.facts import Role

MIN_COMPUTED = 2_000.0
"""Prompt tokens that decode pods compute in the window."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare the prompt tokens of a pool's prefill pods with those that its other pods compute."""
    for pool, pods in scene.pools.items():
        prefill = [pod for pod in pods if pod.role is Role.PREFILL and pod.is_ready]
        decode = [pod for pod in pods if pod.role is Role.DECODE and pod.is_ready]
        if not prefill or not decode:
            continue
        done = [_computed(pod) for pod in prefill]
        others = [_computed(pod) for pod in decode]
        if None in done or all(each is None for each in others):
            yield Missing(pool, "", "computed prompt tokens of prefill or decode pods are not reported")
            continue
        beside = sum(each or 0.0 for each in others)
        if sum(each or 0.0 for each in done) == 0.0 and beside >= MIN_COMPUTED:
            evidence = (Evidence("prompt tokens computed by decode pods", beside, 0.0, "by prefill pods", "tokens"),)
            for pod in prefill:
                yield Indication(pool, pod.address, evidence, 0.9)


def _computed(pod: PodObservation) -> float | None:
    values = [each.computed_tokens if each.computed_tokens is not None else each.prompt_tokens for each in pod.engines]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


RECIPE = Recipe(
    name="prefill_pool_unused",
    title="The prefill pool is not used",
    question=Question.ROUTING,
    severity=Severity.DEGRADING,
    symptom="Prefill pods are idle, and decode pods stall on prompts that they compute themselves.",
    looks_at="Prefill pods computed nothing in the window, while decode pods computed 2,000 prompt tokens or more.",
    cause=(
        "The gateway forms no pairs: unlike connectors or KV formats, an unknown side channel, or a price "
        "that never pays."
    ),
    first_step=(
        "Read why pairs are not formed in the receipts of long prompts (`hearth receipts`), and correct what they name."
    ),
    helped="Prompt tokens of the prefill pods grow; decode pods compute next to none.",
    wrong_if="Prompts are so short that a pair never pays: then run the pods as one pool without roles.",
    look=look,
    explains=("decode_starved_by_prefill", "coarse_chunks", "slower_than_peers"),
)
