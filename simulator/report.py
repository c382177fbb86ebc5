"""Sums a replay up: hits, first tokens, token times, waiting, balance, and how well the router had predicted.

Figures only, from records; independent of routers; reads and writes no file except the one report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from simulator.profile import Profile
from simulator.records import Record, Replay
from simulator.spread import Spread, middle_spread, spread_of

SLO_TTFT_S, SLO_TPOT_S = 2.0, 0.05
"""What `within_slo` asks of a request: first token and pace of an interactive reader."""

LOAD_STEPS = 120
"""Resolution of load over a replay: what a small picture can show."""


@dataclass(frozen=True, slots=True)
class Load:
    """Seconds of prefill work each pod still owed, on average over each `step_s`."""

    step_s: float
    owed_s: dict[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Foresight:
    """How the router's predictions compare with what came."""

    warm_error: float
    """The sum of |predicted - actual| cached tokens by all prompt tokens."""
    warm_excess: float
    """The part of it where too much was predicted cached."""
    ttft_error_s: float
    """The mean of |predicted - real|."""


@dataclass(frozen=True, slots=True)
class RoutingReport:
    """One routing on one trace, over its answered requests. Times in engine seconds."""

    routing: str
    requests: int
    answered: int
    failures: dict[str, int]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    hit_ratio: float
    """Cached by prompt tokens."""
    ttft_s: Spread
    tpot_s: Spread
    wait_s: Spread
    """The part of a TTFT that an idle pod would not have needed for the same cold tokens."""
    within_slo: float
    """The share of all requests whose TTFT and TPOT are within `SLO_TTFT_S` and `SLO_TPOT_S`."""
    imbalance: float
    """The busiest pod's prefill work by the mean of all."""
    work_s: dict[str, float]
    """Prefill seconds by pod."""
    requests_by_pod: dict[str, int]
    foresight: Foresight | None
    """None if no predictions were recorded."""
    load: Load
    length_s: float
    took_s: float
    late_s: Spread | None
    """Of a replay in real time: how long after they were due its requests were sent."""
    busy: float | None
    """Of a replay in real time: the share of this machine's processors that was used, by us or others."""

    @property
    def failed(self) -> int:
        return self.requests - self.answered


@dataclass(frozen=True, slots=True)
class Report:
    """Several routings side by side on one trace. `setup` says onto what they were played, in words and figures."""

    trace: str
    setup: dict[str, str | int | float]
    routings: tuple[RoutingReport, ...]
    seeds: int = 1
    """Of how many runs each figure is the median."""
    clairvoyant_hit_ratio: float | None = None
    """What no routing can exceed (`simulator.policies.bound`); None if sharing was not recorded."""

    def write(self, path: Path) -> None:
        """As JSON."""
        figures: dict[str, Any] = asdict(self)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")


def report_on(replay: Replay, profile: Profile) -> RoutingReport:
    """Sum one replay up. `profile` is what its pods were made of."""
    answered = [one for one in replay.records if one.is_answered]
    work_s = _work_by_pod(replay.pods, answered, profile)
    counts = Counter(one.pod for one in answered)
    prompt_tokens = sum(one.prompt_tokens for one in answered)
    cached_tokens = sum(one.cached_tokens or 0 for one in answered)
    mean_work_s = sum(work_s.values()) / len(work_s)
    return RoutingReport(
        routing=replay.routing,
        requests=len(replay.records),
        answered=len(answered),
        failures=dict(Counter(one.failure or "unfinished" for one in replay.records if not one.is_answered)),
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        output_tokens=sum(one.output_tokens for one in answered),
        hit_ratio=cached_tokens / prompt_tokens if prompt_tokens else 0.0,
        ttft_s=spread_of(one.ttft_s for one in answered if one.ttft_s is not None),
        tpot_s=spread_of(one.tpot_s for one in answered if one.tpot_s is not None),
        wait_s=spread_of(
            max(one.ttft_s - idle_ttft_s(one, profile), 0.0) for one in answered if one.ttft_s is not None
        ),
        within_slo=sum(map(is_within_slo, answered)) / len(replay.records) if replay.records else 0.0,
        imbalance=max(work_s.values()) / mean_work_s if mean_work_s else 1.0,
        work_s=work_s,
        requests_by_pod={pod: counts[pod] for pod in replay.pods},
        foresight=_foresight(answered),
        load=load_of(replay, profile),
        length_s=replay.length_s,
        took_s=replay.took_s,
        late_s=replay.late_s,
        busy=replay.busy,
    )


def middle_of(reports: Sequence[RoutingReport]) -> RoutingReport:
    """The median of each figure that is compared; the first report's where a median would mean nothing."""

    def middle(figure: Callable[[RoutingReport], float]) -> float:
        return median(figure(one) for one in reports)

    return replace(
        reports[0],
        hit_ratio=middle(lambda one: one.hit_ratio),
        ttft_s=middle_spread([one.ttft_s for one in reports]),
        tpot_s=middle_spread([one.tpot_s for one in reports]),
        wait_s=middle_spread([one.wait_s for one in reports]),
        within_slo=middle(lambda one: one.within_slo),
        imbalance=middle(lambda one: one.imbalance),
    )


def is_within_slo(record: Record) -> bool:
    """Return whether an answered request met both objectives of an interactive reader."""
    return (record.ttft_s or 0.0) <= SLO_TTFT_S and (record.tpot_s or 0.0) <= SLO_TPOT_S


def own_prefill_s(record: Record, profile: Profile) -> float:
    """What its cold tokens took to compute."""
    return profile.prefill_s(record.cached_tokens or 0, record.cold_tokens)


def idle_ttft_s(record: Record, profile: Profile) -> float:
    """The TTFT of the same cold tokens on a pod that does nothing else: as many steps as they need chunks."""
    chunks = ceil(record.cold_tokens / profile.max_num_batched_tokens)
    return own_prefill_s(record, profile) + max(chunks, 1) * profile.step_base_s


def load_of(replay: Replay, profile: Profile) -> Load:
    """What each pod owed over time: a request's prefill from when it came to when its first token was out."""
    step_s = max(replay.length_s / LOAD_STEPS, 1e-9)
    owed = {pod: [0.0] * LOAD_STEPS for pod in replay.pods}
    for one in replay.records:
        if one.pod in owed and one.ttft_s is not None:
            begin, end = one.arrived_s / step_s, (one.arrived_s + one.ttft_s) / step_s
            for step in range(int(begin), min(ceil(end), LOAD_STEPS)):
                overlap = min(end, step + 1) - max(begin, step)
                owed[one.pod][step] += overlap * own_prefill_s(one, profile)
    return Load(step_s, {pod: tuple(steps) for pod, steps in owed.items()})


def _work_by_pod(pods: Sequence[str], records: Sequence[Record], profile: Profile) -> dict[str, float]:
    sums = dict.fromkeys(pods, 0.0)
    for one in records:
        if one.pod in sums:
            sums[one.pod] += own_prefill_s(one, profile)
    return sums


def _foresight(records: Sequence[Record]) -> Foresight | None:
    figures = [one for one in records if one.warm_surprise is not None]
    if not figures:
        return None
    prompt_tokens = sum(one.prompt_tokens for one in figures)
    surprises = [one.warm_surprise or 0 for one in figures]
    late = [
        abs(one.predicted_ttft_s - one.ttft_s) for one in figures if one.predicted_ttft_s is not None and one.ttft_s
    ]
    return Foresight(
        warm_error=sum(map(abs, surprises)) / prompt_tokens,
        warm_excess=sum(surprise for surprise in surprises if surprise > 0) / prompt_tokens,
        ttft_error_s=spread_of(late).mean,
    )
