"""Prefill pods are ready and get no work, while decode pods compute prompts themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diagnosis.facts import PodObservation
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene
from routing.facts import Role

MIN_COMPUTED = 2_000.0
"""Prompt tokens that decode pods compute in the window."""

LONG_TOKENS, MIN_LONG = 1_000.0, 2.0
"""Length above which a prompt counts as long, and long ones in the window: a pair does not pay for short ones."""

UNSURE = 0.65
"""Confidence where lengths of prompts are not reported."""


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
        long = _long_prompts(decode)
        if sum(each or 0.0 for each in done) == 0.0 and beside >= MIN_COMPUTED and (long is None or long >= MIN_LONG):
            evidence = (
                Evidence("prompt tokens computed by decode pods", beside, 0.0, "by prefill pods", "tokens"),
                Evidence("long prompts on decode pods", long, MIN_LONG, "limit", "in the window"),
            )
            for pod in prefill:
                yield Indication(pool, pod.address, evidence, UNSURE if long is None else 0.9)


def _long_prompts(pods: Sequence[PodObservation]) -> float | None:
    """Return the finished requests with a long prompt; None where no engine reports lengths."""
    known = [each.prompt_lengths for pod in pods for each in pod.engines if each.prompt_lengths is not None]
    return sum((held.share_above(LONG_TOKENS) or 0.0) * held.count for held in known) if known else None


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
    looks_at=(
        "Prefill pods computed nothing in the window, while decode pods computed 2,000 prompt tokens or more and "
        "finished two prompts or more of over 1,000 tokens (`request_prompt_tokens`); it is not sure where lengths are "
        "not reported."
    ),
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
