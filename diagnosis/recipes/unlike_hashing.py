"""Pods of one pool hash their prefixes differently: what one has cached cannot be found by another's names."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts import PodObservation
from diagnosis.finding import Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.recipes.unlike import unlike
from diagnosis.scene import Scene


def _seed(pod: PodObservation) -> str | None:
    return None if pod.environment is None else pod.environment.digests.get("PYTHONHASHSEED")


def _algorithm(pod: PodObservation) -> str | None:
    return None if pod.flags is None else pod.flags.hash_algorithm


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare hash seeds (by digest) and hash algorithms within each pool."""
    values = {"digest of the hash seed": _seed, "hash algorithm": _algorithm}
    yield from unlike(scene, values, by_role=False, across_rollouts=True)


RECIPE = Recipe(
    name="unlike_hashing",
    title="Unlike prefix hashes in one pool",
    question=Question.PREFILL,
    severity=Severity.DEGRADING,
    symptom="Shared stores, transfers between pods and the precise index never match on some pods.",
    looks_at="Digests of `PYTHONHASHSEED` and `--prefix-caching-hash-algo` are compared within each pool.",
    cause="The named pods were started with another seed or algorithm, or without the seed that the others have.",
    first_step=(
        "Give the named pods the hash seed and algorithm that most pods have (one for all where none has a majority), "
        "the seed from the same Secret."
    ),
    helped="Digests are equal, and external hits of the named pods grow.",
    wrong_if="Hits stay at zero with equal digests: then block sizes or templates differ.",
    look=look,
    depends_on_requests=False,
)
