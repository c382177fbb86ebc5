"""Pods of one pool run different builds of the engine."""

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
    """Compare versions, builds and image digests of pods of one rollout."""
    values = {
        "version": _of(lambda build: build.version),
        "build": _of(lambda build: build.build),
        "image digest": _of(lambda build: build.image_digest),
    }
    yield from unlike(scene, values, by_role=True, across_rollouts=False)


RECIPE = Recipe(
    name="unlike_builds",
    title="Unlike builds in one pool",
    question=Question.ROUTING,
    severity=Severity.ADVICE,
    symptom="Some pods of a pool behave differently at equal load: speed, output or features.",
    looks_at="Version, build and image digest are compared within each pool, role and rollout.",
    cause="A tag moved between starts, or a node kept an older image.",
    first_step=(
        "Pin the image of the pool by digest: to that of most pods, or to the newer one where none has a majority."
    ),
    helped="Digests are equal after the next rollout of the named pods.",
    wrong_if="A rollout is under way on purpose: then give it a rollout revision, and pods are compared within it.",
    look=look,
    explains=("unlike_kernels",),
)
