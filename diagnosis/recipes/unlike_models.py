"""Pods of one pool serve different weights, configurations, tokenizers or chat templates under one name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from diagnosis.facts import BuildFacts, PodObservation
from diagnosis.finding import Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.recipes.unlike import unlike
from diagnosis.scene import Scene


def _of(read: Callable[[BuildFacts], str | None]) -> Callable[[PodObservation], str | None]:
    def value(pod: PodObservation) -> str | None:
        return None if pod.build is None else read(pod.build)

    return value


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare digests of model configuration, tokenizer and template, and the model's revision."""
    values = {
        "digest of the model's configuration": _of(lambda build: build.model_config_digest),
        "digest of the tokenizer": _of(lambda build: build.tokenizer_digest),
        "digest of the chat template": _of(lambda build: build.template_digest),
        "model revision": _of(lambda build: build.revision),
    }
    yield from unlike(scene, values, by_role=False, across_rollouts=False)


RECIPE = Recipe(
    name="unlike_models",
    title="Unlike models, tokenizers or templates in one pool",
    question=Question.PREFILL,
    severity=Severity.DEGRADING,
    symptom="Answers differ between pods, and prefixes cached by one pod do not match on another.",
    looks_at=(
        "Digests of `config.json`, of the tokenizer's file and of the chat template, and the model's revision, are "
        "compared within each pool."
    ),
    cause="The named pods loaded another revision of the model, or were given another tokenizer or chat template.",
    first_step=(
        "Give the named pods what the evidence names (`--revision`, `--tokenizer`, `--chat-template`) as most have it."
    ),
    helped="Digests are equal, and the named pods' hits on shared prefixes rise.",
    wrong_if=(
        "Two versions are served on purpose: then they belong into two pools, or into a canary with a rollout revision."
    ),
    look=look,
    depends_on_requests=False,
)
