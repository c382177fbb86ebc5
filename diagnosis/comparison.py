"""The first question: is it routing, prefill, decode or transfer? Times now beside the baseline's. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, sqrt

from diagnosis.baseline import Baseline, HourTimes, total_requests
from diagnosis.distribution import Distribution
from diagnosis.facts import FleetFacts
from diagnosis.finding import FirstAnswer, Question
from diagnosis.request_times import Phase, RequestTimes, TrafficKey

MIN_REQUESTS = 20
"""Requests in the window below which the answer is unknown; the next: in the baseline."""
MIN_BASELINE_REQUESTS = 100

MAX_LENGTH_CHANGE = 0.3
"""Change of the mean logarithm of lengths, beyond 2.5 times its error, from which the workload counts as changed."""

MIN_KIND_REQUESTS, MIN_KIND_SHARE = 10, 0.1
"""Requests of a kind of traffic, and their share of all, from which its lengths are compared."""

MAX_RATE_CHANGE = 1.5
"""Growth of the request rate from which the workload counts as changed."""

MAX_MIX_CHANGE = 0.2
"""Share of requests that belong to other kinds of traffic than before."""

MIN_EXCESS_S = 0.05
MIN_EXCESS_SHARE = 0.3
"""Growth of a phase, in seconds a request and as a share of the same phase before, that counts."""

QUESTIONS: Mapping[Phase, Question] = {
    Phase.GATEWAY: Question.ROUTING,
    Phase.PREFILL: Question.PREFILL,
    Phase.TRANSFER: Question.TRANSFER,
    Phase.DECODE: Question.DECODE,
    Phase.STALL: Question.DECODE,
}
"""Where a phase's time goes; the engine's queue is decided by what fills the engine."""


@dataclass(frozen=True, slots=True)
class _Moments:
    mean: float
    error: float


def first_answer(facts: FleetFacts, baseline: Baseline | None) -> FirstAnswer:
    """Compare the seconds of requests with the baseline's at this hour of the week."""
    now, count = facts.times, total_requests(facts.times.values())
    if count < MIN_REQUESTS:
        return FirstAnswer(Question.UNKNOWN, f"too little traffic: {count:.0f} requests, {MIN_REQUESTS} are needed")
    before = {} if baseline is None else baseline.times_at(facts.at_s)
    if total_requests(each.times for each in before.values()) < MIN_BASELINE_REQUESTS:
        return FirstAnswer(Question.UNKNOWN, "no baseline of this traffic: `hearth baseline save` makes one")
    if change := workload_change(now, before):
        return FirstAnswer(Question.UNKNOWN, f"the workload changed: {change}")
    seconds = _seconds(now, before)
    grown = {
        phase: after - normal
        for phase, (after, normal) in seconds.items()
        if after - normal >= max(MIN_EXCESS_S, MIN_EXCESS_SHARE * normal, 2 * _error(now, phase))
    }
    shown = {phase.value: pair for phase, pair in seconds.items()}
    if not grown:
        return FirstAnswer(Question.NOTHING, "requests take as long as the baseline's", shown)
    phase = max(grown, key=lambda each: grown[each])
    question = QUESTIONS.get(phase) or _queue_question(facts)
    reason = f"{phase.value} takes {grown[phase]:.2f} s a request more than the baseline"
    return FirstAnswer(question, reason, shown)


def workload_change(now: Mapping[TrafficKey, RequestTimes], before: Mapping[TrafficKey, HourTimes]) -> str:
    """Return what changed in the traffic (lengths, rate or mix); empty if it is the same within its noise."""
    if change := _length_change(now, before):
        return change
    rate, normal_rate = _rate(now), _normal_rate(before)
    if normal_rate and rate > MAX_RATE_CHANGE * normal_rate:
        return f"{rate:.2f} requests/s, {normal_rate:.2f} in the baseline"
    moved = _mix_change(now, before)
    noise = 1 / sqrt(max(total_requests(now.values()), 1.0))
    if moved > MAX_MIX_CHANGE + noise:
        return f"{moved:.0%} of requests are of other kinds than the baseline's"
    return ""


def _length_change(now: Mapping[TrafficKey, RequestTimes], before: Mapping[TrafficKey, HourTimes]) -> str:
    """Compare lengths of each kind of traffic that is a tenth of all or more."""
    count = total_requests(now.values())
    for key, times in now.items():
        held = before.get(key)
        if held is None or times.requests < max(MIN_KIND_REQUESTS, MIN_KIND_SHARE * count):
            continue
        for name in ("prompt_tokens", "output_tokens"):
            after, normal = _log_moments(getattr(times, name)), _log_moments(getattr(held.times, name))
            if after is None or normal is None:
                continue
            if abs(after.mean - normal.mean) > MAX_LENGTH_CHANGE + 2.5 * after.error:
                return f"{name} in {key.pool or 'no pool'} are {_ratio(after.mean - normal.mean)} of the baseline's"
    return ""


def _ratio(difference: float) -> str:
    return f"{2.718281828**difference:.2f} times those"


def _log_moments(held: Distribution | None) -> _Moments | None:
    if held is None or held.count < 1 or not held.limits:
        return None
    edges = (*held.limits, held.limits[-1] * 2)
    logs = [log(edge) for edge in edges]
    mean = sum(value * count for value, count in zip(logs, held.counts, strict=True)) / held.count
    spread = sum((value - mean) ** 2 * count for value, count in zip(logs, held.counts, strict=True)) / held.count
    return _Moments(mean, sqrt(spread / held.count))


def _rate(times: Mapping[TrafficKey, RequestTimes]) -> float:
    seconds = max((each.end_s - each.start_s for each in times.values()), default=0.0)
    return total_requests(times.values()) / seconds if seconds > 0 else 0.0


def _normal_rate(before: Mapping[TrafficKey, HourTimes]) -> float:
    return sum(each.times.requests / each.seconds for each in before.values() if each.seconds > 0)


def _mix_change(now: Mapping[TrafficKey, RequestTimes], before: Mapping[TrafficKey, HourTimes]) -> float:
    count, past = total_requests(now.values()), total_requests(each.times for each in before.values())
    shares = {key: each.requests / count for key, each in now.items()}
    normal = {key: each.times.requests / past for key, each in before.items()}
    return sum(abs(shares.get(key, 0.0) - normal.get(key, 0.0)) for key in {*shares, *normal}) / 2


def _seconds(
    now: Mapping[TrafficKey, RequestTimes], before: Mapping[TrafficKey, HourTimes]
) -> dict[Phase, tuple[float, float]]:
    """Mean seconds a request in each phase, now and before, the kinds of traffic weighted as now."""
    pairs: dict[Phase, tuple[float, float]] = {}
    for phase in Phase:
        after = normal = weight = 0.0
        for key, each in now.items():
            held = before.get(key)
            mine = each.phases.get(phase)
            its = None if held is None else held.times.phases.get(phase)
            if mine is None or its is None or mine.mean is None or its.mean is None:
                continue
            after += each.requests * mine.mean
            normal += each.requests * its.mean
            weight += each.requests
        if weight:
            pairs[phase] = (after / weight, normal / weight)
    return pairs


def _error(now: Mapping[TrafficKey, RequestTimes], phase: Phase) -> float:
    """Standard error of a phase's mean."""
    held = Distribution()
    for each in now.values():
        held = held.plus(each.phases.get(phase))
    mean = held.mean
    if mean is None or not held.limits:
        return 0.0
    edges = (*held.limits, held.limits[-1] * 2)
    spread = sum((edge * 0.75 - mean) ** 2 * count for edge, count in zip(edges, held.counts, strict=True))
    return sqrt(spread) / held.count


def _queue_question(facts: FleetFacts) -> Question:
    """Requests wait in engines: routing if others of the same pool are empty, decode where KV or places are full."""
    waiting: dict[str, list[float]] = {}
    is_full = False
    for pod in facts.pods:
        for engine in pod.engines:
            if engine.waiting is not None:
                waiting.setdefault(f"{pod.pool}/{pod.role}", []).append(engine.waiting.mean)
            is_full |= (engine.kv_usage is not None and engine.kv_usage.peak >= 0.95) or bool(engine.preemptions)
            places = None if pod.flags is None else pod.flags.max_num_seqs
            is_full |= bool(places and engine.running is not None and engine.running.mean >= 0.95 * places)
    if is_full:
        return Question.DECODE
    uneven = any(len(each) > 1 and max(each) >= 4 and min(each) <= 0.1 * max(each) for each in waiting.values())
    return Question.ROUTING if uneven else Question.PREFILL
