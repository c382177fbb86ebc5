"""The gateway's event loop is busy all the time: requests and chunks wait in it."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene

MAX_CPU = 0.92
MAX_LAG_S = 0.05
"""95th percentile of the loop's lag."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look at CPU and loop lag of each gateway process."""
    for gateway in scene.facts.gateways:
        lag = None if gateway.loop_lag is None else gateway.loop_lag.quantile(0.95)
        if gateway.cpu is None and lag is None:
            yield Missing("", "", "CPU and loop lag of the gateway are not known")
            continue
        is_busy = gateway.cpu is not None and gateway.cpu >= MAX_CPU
        is_late = lag is not None and lag >= MAX_LAG_S
        if is_busy or (is_late and (gateway.cpu is None or gateway.cpu >= 0.6)):
            evidence = (
                Evidence("CPU of the gateway", gateway.cpu, MAX_CPU, "limit", "cores", gateway.name),
                Evidence("loop lag, 95th percentile", lag, MAX_LAG_S, "limit", "s", gateway.name),
            )
            yield Indication("", "", evidence, 0.95 if is_busy and is_late else 0.8)


RECIPE = Recipe(
    name="gateway_saturated",
    title="The gateway is saturated",
    question=Question.ROUTING,
    severity=Severity.DEGRADING,
    symptom="TTFT and token gaps grow for all pods at once, while engines report normal times.",
    looks_at="A gateway process uses 0.92 of its core, or its loop is late by 50 ms (95th percentile) with CPU at 0.6.",
    cause="More requests and chunks pass one process than it can handle.",
    first_step="Add one process to the gateway (`--processes`).",
    helped="Loop lag falls below 10 ms and the gateway's share of TTFT returns to the baseline.",
    wrong_if="Lag stays with a second process: then a single call blocks the loop, and its log names slow callbacks.",
    look=look,
    explains=("api_server_bound", "redis_slow"),
)
