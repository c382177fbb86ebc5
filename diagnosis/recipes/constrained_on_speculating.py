"""Constrained output on speculating pods: a grammar masks what the draft proposes."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.finding import Evidence, Question, Severity
from diagnosis.levels import acceptance, constrained_share, pod_figure
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.recipes.acceptance_decayed import MANY_CONSTRAINED, low_acceptance
from diagnosis.scene import Scene

DECAYED = 0.8


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look for low acceptance on pods where a quarter of the requests or more are constrained."""
    for pod in scene.facts.pods:
        found, share = low_acceptance(scene, pod, DECAYED), constrained_share(pod.requests)
        if share is None:
            if found is not None or pod_figure(pod, acceptance) is not None:
                yield Missing(
                    pod.pool, pod.address, "the share of constrained requests is not known, or they are too few"
                )
        elif share >= MANY_CONSTRAINED and found is not None:
            evidence = (found, Evidence("constrained requests", share, MANY_CONSTRAINED, "limit", "share", pod.address))
            yield Indication(pod.pool, pod.address, evidence, 0.9)


RECIPE = Recipe(
    name="constrained_on_speculating",
    title="Constrained traffic runs on speculating pods",
    question=Question.DECODE,
    severity=Severity.DEGRADING,
    symptom="Requests with tools or a schema are slow on speculating pods, and plain ones beside them too.",
    looks_at=(
        "A quarter or more of a pod's requests have tools or a schema, and acceptance is below 80 % of the "
        "baseline's or of the peers'."
    ),
    cause="The grammar rejects drafted tokens, so each step verifies drafts in vain.",
    first_step="Send constrained requests to pods without speculation (price them away from the named pods).",
    helped=(
        "Acceptance of the named pods returns to the baseline; constrained requests keep the plain pods' time"
        " per token."
    ),
    wrong_if="Acceptance stays low without constrained requests: then the draft has decayed.",
    look=look,
    raise_after_s=30.0,
    explains=("acceptance_decayed", "slower_than_peers", "speculation_on_saturated_batch", "decode_starved_by_prefill"),
)
