"""Pods of one pool keep their KV in different formats, so it cannot be handed over or shared."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts import PodObservation
from diagnosis.finding import Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.recipes.unlike import unlike
from diagnosis.scene import Scene


def _dtype(pod: PodObservation) -> str | None:
    return None if pod.flags is None else pod.flags.kv_dtype


def _block(pod: PodObservation) -> str | None:
    return None if pod.flags is None or pod.flags.block_size is None else str(pod.flags.block_size)


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare KV types and block sizes within each pool, prefill and decode together."""
    yield from unlike(scene, {"KV type": _dtype, "block size": _block}, by_role=False, across_rollouts=True)


RECIPE = Recipe(
    name="unlike_kv_formats",
    title="Unlike KV formats in one pool",
    question=Question.TRANSFER,
    severity=Severity.DEGRADING,
    symptom="Pairs do not form, transfers fail, or cached prefixes do not match on some pods.",
    looks_at="`--kv-cache-dtype` and `--block-size` are compared within each pool, prefill and decode together.",
    cause="The named pods were started with another KV type or block size.",
    first_step=(
        "Start the named pods with the KV type and block size that most pods have (one for all where none has a "
        "majority)."
    ),
    helped="The pods pair with the rest of the pool, and their hit rate reaches that of the peers.",
    wrong_if="The connector converts formats: then the difference is wanted, and belongs into two pools.",
    look=look,
    depends_on_requests=False,
)
