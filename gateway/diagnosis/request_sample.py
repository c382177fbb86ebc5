"""Where the time of ended requests went, and what each pod's requests show, from a bounded sample of their records.

Records come in the batches of the request counters. At most `SAMPLES_PER_WINDOW` of a window are looked at; counts are
scaled up by what was left out, times need no scaling.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from diagnosis.distribution import TIME_LIMITS_S, Distribution, distribution_of, medians_by_step
from diagnosis.facts import COURSE_STEP_S, GatewayView
from diagnosis.request_times import (
    RequestClass,
    RequestMoments,
    RequestTimes,
    TimesBuilder,
    TrafficKey,
    joined,
    split,
)
from gateway.diagnosis.server_facts import shown_model
from gateway.pipeline.attempt import AttemptStatus
from gateway.pipeline.record import Outcome
from routing.decision.placement import AttemptReceipt
from routing.eligible import PairingFallback
from routing.facts import Role
from routing.fleet import Fleet

SAMPLES_PER_STEP = 256
"""Records looked at between two looks of the doctor, 5 s apart."""

STEPS = 6
"""Steps of a window: half a minute."""

MAX_PODS = 4096

LOST_TRANSFERS = (PairingFallback.TRANSFER_STALLED, PairingFallback.TRANSFER_FAILED)

POD_FAILURES = frozenset(status.value for status in AttemptStatus if status.is_pod_failure)


@dataclass(slots=True)
class _PodStep:
    """What one pod's sampled requests of one step show."""

    requests: float = 0.0
    errors: float = 0.0
    constrained: float = 0.0
    salted: float = 0.0
    salts: set[str] = field(default_factory=set)
    """Trust domains of the salted ones: each has a salt of its own."""
    ended: float = 0.0
    predicted_cached: float = 0.0
    actual_cached: float = 0.0
    prompt_tokens: float = 0.0
    first_tokens: list[tuple[float, float]] = field(default_factory=list)
    """When the first byte came, and the seconds since its attempt was sent."""
    token_gap_s: list[float] = field(default_factory=list)
    constrained_gap_s: list[float] = field(default_factory=list)
    handover_s: list[float] = field(default_factory=list)
    pairs: float = 0.0
    lost_pairs: float = 0.0


@dataclass(frozen=True, slots=True)
class _Step:
    start_s: float
    end_s: float
    seen: int
    sampled: int
    pods: Mapping[str, _PodStep]
    times: Mapping[TrafficKey, RequestTimes]


class RequestSample:
    """One per gateway. `queue_of` returns the mean seconds that requests spent in the queue of a pod's engines."""

    def __init__(self, fleet: Fleet, now_s: float, queue_of: Callable[[str], float | None]) -> None:
        """`now_s`: Unix time, as all times here."""
        self.seen = 0
        """Records since the start."""
        self._fleet = fleet
        self._queue_of = queue_of
        self._start_s = now_s
        self._seen = self._sampled = 0
        self._pods: dict[str, _PodStep] = {}
        self._times = TimesBuilder(now_s)
        self._steps: deque[_Step] = deque(maxlen=STEPS)

    def on_outcome(self, outcome: Outcome) -> None:
        """Count a request that has ended."""
        self._seen += 1
        self.seen += 1
        if self._sampled < SAMPLES_PER_STEP and outcome.attempts and outcome.coalesced_with is None:
            self._sampled += 1
            self._sample(outcome)

    def step(self, now_s: float) -> None:
        """End a step and begin the next one."""
        self._steps.append(_Step(self._start_s, now_s, self._seen, self._sampled, self._pods, self._times.close(now_s)))
        self._start_s, self._seen, self._sampled, self._pods = now_s, 0, 0, {}

    def times(self) -> dict[TrafficKey, RequestTimes]:
        """Return the times of the window's sampled requests by kind of traffic."""
        return joined(step.times for step in self._steps)

    def last_times(self) -> Mapping[TrafficKey, RequestTimes]:
        """Return those of the last step alone."""
        return self._steps[-1].times if self._steps else {}

    def view_of(self, pod: str) -> GatewayView | None:
        """Return what the window's requests show of a pod; None before the first step."""
        if not self._steps:
            return None
        held = [(step, step.pods[pod]) for step in self._steps if pod in step.pods]
        scaled = {
            name: sum(getattr(each, name) * _scale(step) for step, each in held)
            for name in ("requests", "errors", "constrained", "salted", "pairs", "lost_pairs")
        }
        tokens = {
            f"{name}_tokens": sum(getattr(each, f"{name}{suffix}") for _, each in held)
            for name, suffix in (("predicted_cached", ""), ("actual_cached", ""), ("prompt", "_tokens"))
        }
        start_s, end_s = self._steps[0].start_s, self._steps[-1].end_s
        # Not scaled up: of the salts of requests that were left out some are the same.
        salts = set[str]().union(*(each.salts for _, each in held))
        first = [timed for _, each in held for timed in each.first_tokens]
        return GatewayView(
            start_s,
            end_s,
            **scaled,
            salts=float(len(salts)),
            **tokens,
            first_token=_distribution([[seconds for _, seconds in first]]),
            first_token_course=medians_by_step((timed for timed in first if timed[0] >= start_s), COURSE_STEP_S),
            token_gap=_distribution(each.token_gap_s for _, each in held),
            constrained_token_gap=_distribution(each.constrained_gap_s for _, each in held),
            handover=_distribution(each.handover_s for _, each in held),
        )

    def _sample(self, outcome: Outcome) -> None:
        for attempt in outcome.attempts:
            pod = self._pod(attempt.engine.partition("#")[0])
            pod.requests += 1
            pod.errors += attempt.result in POD_FAILURES
            pod.constrained += outcome.is_constrained
            if outcome.trust_domain is not None:
                pod.salted += 1
                pod.salts.add(outcome.trust_domain)
            if attempt.prefill_engine is not None:
                self._sample_pair(attempt, pod, self._pod(attempt.prefill_engine.partition("#")[0]))
        last = outcome.attempts[-1]
        pod = self._pod(last.engine.partition("#")[0])
        if last.actual_ttft_s is not None:
            sent_s = outcome.at_s - outcome.duration_s + last.start_s
            pod.first_tokens.append((sent_s + last.actual_ttft_s, last.actual_ttft_s))
        if last.actual_cached_input_tokens is not None:
            pod.predicted_cached += last.predicted_cached_input_tokens
            pod.actual_cached += last.actual_cached_input_tokens
            pod.prompt_tokens += last.predicted_input_tokens
        tokens = outcome.usage.completion_tokens if outcome.usage is not None else 0
        if outcome.decode_s is not None and tokens > 1 and outcome.stream:
            gap_s = outcome.decode_s / (tokens - 1)
            pod.token_gap_s.append(gap_s)
            if outcome.is_constrained:
                pod.constrained_gap_s.append(gap_s)
        if outcome.reason is None and outcome.status < 400:
            self._observe_times(outcome, last)

    def _sample_pair(self, attempt: AttemptReceipt, decode: _PodStep, prefill: _PodStep) -> None:
        is_lost = attempt.fallback_reason in LOST_TRANSFERS
        for pod in (decode, prefill):
            pod.pairs += 1
            pod.lost_pairs += is_lost
        if attempt.actual_transfer_s is not None and not is_lost:
            prefill.handover_s.append(attempt.actual_transfer_s)

    def _observe_times(self, outcome: Outcome, last: AttemptReceipt) -> None:
        url = last.engine.partition("#")[0]
        known, usage = self._fleet.pod(url), outcome.usage
        arrived_s = outcome.at_s - outcome.duration_s
        sent_s = arrived_s + last.start_s
        moments = RequestMoments(
            arrived_s=arrived_s,
            sent_s=sent_s,
            ended_s=outcome.at_s,
            first_token_s=None if last.actual_ttft_s is None else sent_s + last.actual_ttft_s,
            queue_s=self._queue_of(url),
            prefilled_s=None if last.prefill_s is None else sent_s + last.prefill_s,
            transfer_s=last.actual_transfer_s,
        )
        key = TrafficKey(
            shown_model(outcome.model),
            shown_model(known.pool_label) if known is not None else "",
            Role(last.role),
            RequestClass.CONSTRAINED if outcome.is_constrained else RequestClass.PLAIN,
        )
        prompt = None if usage is None else usage.prompt_tokens
        cached = None if usage is None else usage.cached_tokens
        self._times.observe(
            key,
            split(moments),
            prompt,
            None if prompt is None or cached is None else prompt - cached,
            None if usage is None else usage.completion_tokens,
        )

    def _pod(self, url: str) -> _PodStep:
        pod = self._pods.get(url)
        if pod is None:
            pod = self._pods.setdefault(url if len(self._pods) < MAX_PODS else "", _PodStep())
        return pod


def _scale(step: _Step) -> float:
    return step.seen / step.sampled if step.sampled else 1.0


def _distribution(lists: Iterable[list[float]]) -> Distribution | None:
    values = [value for held in lists for value in held]
    return distribution_of(values, TIME_LIMITS_S) if values else None
