"""Chunked prefill is off: a long prompt holds up every stream of its engine for one long step."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.finding import Evidence, Question, Severity
from diagnosis.levels import gap_tail
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene
from routing.facts import Role


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look at the flag of engines that decode, and at the tail of their token gaps."""
    for pod in scene.facts.pods:
        if pod.role is Role.PREFILL:
            continue
        if pod.flags is None or pod.flags.chunked_prefill is None:
            yield Missing(pod.pool, pod.address, "the flag `--enable-chunked-prefill` is not known")
        elif not pod.flags.chunked_prefill:
            tails = [tail for engine in pod.engines if (tail := gap_tail(engine)) is not None]
            middle, high = max(tails, key=lambda tail: tail[1], default=(None, None))
            stalls = high is not None and middle is not None and high >= max(0.2, 4 * middle)
            evidence = (
                Evidence("chunked prefill", "off", "on", "pool", "", pod.address),
                Evidence("token gap, 99th percentile", high, middle, "median", "s", pod.address),
            )
            severity = Severity.DEGRADING if stalls else Severity.ADVICE
            yield Indication(pod.pool, pod.address, evidence, 0.95 if stalls else 0.8, severity)


RECIPE = Recipe(
    name="chunked_prefill_off",
    title="Chunked prefill is off",
    question=Question.DECODE,
    severity=Severity.DEGRADING,
    symptom="Streams pause whenever a long prompt arrives at the same engine; the median token gap stays normal.",
    looks_at=(
        "The pod was started without chunked prefill. The finding is degrading where the 99th percentile of "
        "`inter_token_latency_seconds` is four times its median and above 0.2 s, else it is advice."
    ),
    cause="Without chunks a prompt is computed in one step, and all streams of the engine wait for that step.",
    first_step="Start the named pod with `--enable-chunked-prefill`.",
    helped="The 99th percentile of token gaps falls to the time of one chunk; long prompts take slightly longer.",
    wrong_if="Pauses stay with chunked prefill on: then look at the size of the chunks, or at preemptions.",
    look=look,
    explains=("coarse_chunks", "decode_starved_by_prefill", "slower_than_peers"),
)
