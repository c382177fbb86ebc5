"""Chunked prefill is off: a long prompt holds up every stream of its engine for one long step."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.finding import Evidence, Question, Severity
from diagnosis.levels import never_generates, stalled_share
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene
from routing.facts import Role

MIN_STALLED = 0.05
"""Share of decode time in stalls from which streams suffer."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look at the flag of engines that decode, and at the tail of their token gaps."""
    for pod in scene.facts.pods:
        if pod.role is Role.PREFILL or never_generates(pod):
            continue
        if pod.flags is None or pod.flags.chunked_prefill is None:
            yield Missing(pod.pool, pod.address, "the flag `--enable-chunked-prefill` is not known")
        elif not pod.flags.chunked_prefill:
            shares = [share for engine in pod.engines if (share := stalled_share(engine)) is not None]
            share = max(shares, default=None)
            stalls = share is not None and share >= MIN_STALLED
            evidence = (
                Evidence("chunked prefill", "off", "on", "pool", "", pod.address),
                Evidence("decode time in stalls", share, MIN_STALLED, "limit", "share", pod.address),
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
        "The pod was started without chunked prefill. The finding is degrading where 5 % of decode time or more is "
        "spent in stalls (gaps of 0.2 s and four medians of `inter_token_latency_seconds`), else it is advice. Pods "
        "that have never generated a token, as those that make vectors, have no streams to hold up."
    ),
    cause="Without chunks a prompt is computed in one step, and all streams of the engine wait for that step.",
    first_step="Start the named pod with `--enable-chunked-prefill`.",
    helped="Decode time in stalls falls below 1 %; long prompts take slightly longer.",
    wrong_if="Pauses stay with chunked prefill on: then look at the size of the chunks, or at preemptions.",
    look=look,
    explains=("coarse_chunks", "decode_starved_by_prefill", "slower_than_peers"),
)
