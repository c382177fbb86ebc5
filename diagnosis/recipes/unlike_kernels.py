"""Pods of one pool chose different attention kernels."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts import PodObservation
from diagnosis.finding import Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.recipes.unlike import unlike
from diagnosis.scene import Scene


def _backend(pod: PodObservation) -> str | None:
    return None if pod.flags is None else pod.flags.attention_backend


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare attention backends of pods of one role and rollout."""
    yield from unlike(scene, {"attention backend": _backend}, by_role=True, across_rollouts=False)


RECIPE = Recipe(
    name="unlike_kernels",
    title="Unlike attention kernels in one pool",
    question=Question.DECODE,
    severity=Severity.ADVICE,
    symptom="Some pods decode slower or round differently at equal load, often after an upgrade.",
    looks_at="The attention backend that each engine logs or was given is compared within each pool and role.",
    cause="A backend was unavailable on those pods (block size, missing package), so the engine chose another one.",
    first_step=(
        "Pin `--attention-backend` of the named pods to that of most pods (the faster one where none has a majority)."
    ),
    helped="The engine starts with the pinned backend, or names what precludes it; time per token equals the peers'.",
    wrong_if="Backends are equal and speeds differ: then compare builds and GPU clocks.",
    look=look,
    explains=("slower_than_peers",),
)
