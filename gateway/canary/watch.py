"""Watches canaries by the records of requests: gives the rollout every TTFT and TPOT, logs what it decides, and exports
it to Prometheus. Decides nothing itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.pipeline.attempt import AttemptStatus
from gateway.pipeline.record import Outcome
from gateway.runtime.event_log import LogFunction
from gateway.runtime.guard import restarted
from routing.canary import Canary, CanaryStage, Rollout
from routing.facts import Role
from routing.fleet import Fleet
from routing.pods import Pod

Family = CounterMetricFamily | GaugeMetricFamily

LOOK_S = 1.0

BROKEN = frozenset(end.value for end in AttemptStatus if end.is_pod_failure)
"""Ends of attempts that are their pod's fault."""


class CanaryMonitor(Collector):
    """One per gateway; observes records where canaries are configured."""

    def __init__(self, rollout: Rollout, fleet: Fleet, log_event: LogFunction, clock: Callable[[], float]) -> None:
        self._rollout = rollout
        self._fleet = fleet
        self._log_event = log_event
        self._clock = clock

    @restarted("canary")
    async def run(self) -> None:
        """Look every second, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """End trials that cannot be judged or take too long; if none runs, begin the next whose pods are there."""
        marks = {pod.url: (pod.pool, pod.facts.revision) for pod in self._fleet.pods}
        split = {pod.url: marks[pod.url] for pod in self._fleet.pods if _is_split(pod)}
        for canary in self._rollout.end_disaggregated(split):
            pods = sorted(url for url, held in split.items() if canary.includes(*held))
            self._log_event(
                "error",
                "canary_rejected",
                canary=canary.terms.name,
                upstreams=pods,
                fix="put pods on trial that serve whole requests (role `either`); split pools cannot be compared yet",
            )
        if (expired := self._rollout.expire(self._clock())) is not None:
            self._log_change(expired)
        if (started_canary := self._rollout.start_next(marks, self._clock())) is not None:
            self._log_event(
                "info",
                "canary_started",
                canary=started_canary.terms.name,
                traffic_share=started_canary.terms.traffic_share,
            )

    def on_outcome(self, outcome: Outcome) -> None:
        """Add every attempt of a request to the comparison."""
        for attempt in outcome.attempts:
            pod = self._fleet.pod(attempt.engine.partition("#")[0])
            if pod is None:
                continue
            is_last = attempt is outcome.attempts[-1]
            failed = attempt.result in BROKEN
            if attempt.actual_ttft_s is None and not failed:
                continue
            cold = attempt.predicted_input_tokens - (
                attempt.actual_cached_input_tokens or attempt.predicted_cached_input_tokens
            )
            tpot_s = _tpot_s(outcome) if is_last and not failed else None
            ttft_s = None if failed else attempt.actual_ttft_s
            marks = (pod.pool, pod.facts.revision)
            decided = self._rollout.observe(marks, max(0.0, cold), ttft_s, tpot_s, self._clock())
            if decided is not None:
                self._log_change(decided)

    def _log_change(self, canary: Canary) -> None:
        back = canary.stage is CanaryStage.ROLLED_BACK
        self._log_event(
            "error" if back else "info",
            "canary_rolled_back" if back else "canary_accepted",
            canary=canary.terms.name,
            reason=canary.end_reason,
            ttft_e_value=round(canary.ttft.worse.max_wealth, 1),
            tpot_e_value=round(canary.tpot.worse.max_wealth, 1),
            comparisons=canary.ttft.worse.rounds,
        )

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        stage = GaugeMetricFamily("hearth_canary_stage", "1 for its current stage.", labels=("canary", "stage"))
        worse = GaugeMetricFamily(
            "hearth_canary_e_value", "Evidence that it is worse; rolled back at 2 / error.", labels=("canary", "kind")
        )
        rounds = CounterMetricFamily("hearth_canary_comparisons", "Comparisons.", labels=("canary", "kind"))
        for canary in self._rollout.canaries:
            name = canary.terms.name
            for each in CanaryStage:
                stage.add_metric((name, each), float(canary.stage is each))
            for kind, comparison in (("ttft", canary.ttft), ("tpot", canary.tpot)):
                worse.add_metric((name, kind), comparison.worse.max_wealth)
                rounds.add_metric((name, kind), comparison.worse.rounds)
        yield from (stage, worse, rounds)


def _is_split(pod: Pod) -> bool:
    """Return whether a pod has an engine that only prefills or only decodes."""
    return any(engine.role is not Role.EITHER for engine in pod.engines)


def _tpot_s(outcome: Outcome) -> float | None:
    tokens = outcome.usage.completion_tokens if outcome.usage is not None else 0
    return None if outcome.decode_s is None or tokens < 2 else outcome.decode_s / (tokens - 1)
