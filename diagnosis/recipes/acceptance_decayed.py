"""The target model accepts far fewer drafted tokens than before."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts import PodObservation
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.levels import LEVELS, acceptance, acceptance_of_few, constrained_share, pod_figure
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene

DECAYED = 0.6
"""Share of the reference's acceptance."""

FLOOR = 0.1
"""Acceptance that is low in any case."""

MANY_CONSTRAINED, FEW_CONSTRAINED = 0.25, 0.1
"""Share of constrained requests that explains low acceptance, and below which it explains nothing."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare acceptance with the baseline and peers, on pods without much constrained traffic."""
    for pod in scene.facts.pods:
        found = low_acceptance(scene, pod, DECAYED)
        if found is None:
            if pod_figure(pod, acceptance) is None and pod.flags is not None and pod.flags.speculative_method:
                yield Missing(pod.pool, pod.address, "drafted or accepted tokens are missing, or too few")
            continue
        share = constrained_share(pod.requests)
        if share is None or share < MANY_CONSTRAINED:
            is_sure = share is not None and share < FEW_CONSTRAINED
            yield Indication(pod.pool, pod.address, (found,), 0.9 if is_sure else 0.6)


def low_acceptance(scene: Scene, pod: PodObservation, share: float) -> Evidence | None:
    """Return the evidence that a pod's acceptance is below a share of the baseline's or the peers', or very low.

    Where drafted tokens are too few to measure it, the highest that it may be must be below the reference itself.
    """
    value, few = pod_figure(pod, acceptance), None
    if value is None:
        few = acceptance_of_few(pod)
        if few is None:
            return None
        value = few[0]
    references = {
        "baseline": scene.normal(pod, "acceptance"),
        "peers": scene.peer_median(pod, LEVELS["acceptance"]),
        "limit": FLOOR / share,
    }
    for basis, normal in references.items():
        if normal is not None and value <= share * normal and (few is None or few[1] < normal):
            name = "acceptance" if few is None else "acceptance of few drafts"
            compared = FLOOR if basis == "limit" else normal
            return Evidence(name, value, compared, basis, "share of drafted tokens", pod.address)
    return None


RECIPE = Recipe(
    name="acceptance_decayed",
    title="Draft acceptance has decayed",
    question=Question.DECODE,
    severity=Severity.DEGRADING,
    symptom="Time per token rises on speculating pods while batches are as large as before.",
    looks_at=(
        "`spec_decode_num_accepted_tokens_total` by `spec_decode_num_draft_tokens_total` is 60 % or less of the "
        "baseline's or of the peers', or 0.1 or less, while less than a quarter of the pod's requests are constrained. "
        "It is sure where less than a tenth are. Of less than 200 drafted tokens in the window, 10 drafts or more "
        "count where they show with 95 % that it is below the reference."
    ),
    cause="The draft no longer fits the target model or the traffic: one of both was replaced.",
    first_step=(
        "Compare the draft's revision on the named pod with that of its peers, and load the one that fits the target."
    ),
    helped="Acceptance returns to the baseline, and time per token falls in proportion.",
    wrong_if="Acceptance stays low with the old draft: then the traffic changed, and speculation should be off for it.",
    look=look,
    raise_after_s=30.0,
    explains=("slower_than_peers", "speculation_on_saturated_batch", "decode_starved_by_prefill"),
)
