"""A few experts receive most tokens: the rank that holds them sets the pace of all."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene

MIN_BALANCE = 0.6
"""Mean by maximum load of expert ranks."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look at the balance of experts that engines with expert parallelism report."""
    for pod, engine in scene.engines():
        balance = engine.expert_balance
        if balance is None:
            if pod.flags is not None and pod.flags.expert_parallel:
                yield Missing(pod.pool, pod.address, "the balance of experts is not reported")
        elif balance.mean < MIN_BALANCE and balance.last < MIN_BALANCE:
            evidence = (Evidence("balance of experts", balance.mean, MIN_BALANCE, "limit", "mean by max", pod.address),)
            yield Indication(pod.pool, pod.address, evidence, 0.9)


RECIPE = Recipe(
    name="hot_expert",
    title="Experts are loaded unevenly",
    question=Question.DECODE,
    severity=Severity.DEGRADING,
    symptom=(
        "A mixture-of-experts pod is slower than its batch explains, with one or two GPUs far busier than the rest."
    ),
    looks_at="The balance that EPLB logs (mean by maximum load over ranks) stays below 0.6.",
    cause=(
        "The router of the model sends a large share of tokens to a few experts, and every step waits for their rank."
    ),
    first_step="Turn on `--enable-eplb` on the named pod; where it is on, add one redundant expert a rank instead.",
    helped="The logged balance rises above 0.8 after one rearrangement, and time per token falls.",
    wrong_if="Balance rises and steps stay slow: then communication between ranks is the limit.",
    look=look,
    explains=("slower_than_peers",),
)
