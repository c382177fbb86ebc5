"""Finds the engine's speeds with which the recorded requests, sent as they were, give the metrics that pods report.

Speeds that are divided out of counters have the waiting of other requests in them: an engine that prefills one prompt
while another decodes counts that time for both. So the requests are played on simulated engines, and the speeds are
changed until queue, prefill, steps and first tokens are those of the metrics. An engine profile that was measured keeps
its proportions, and all of it is slowed or sped up by one factor: what else its machine does meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from simulator.engine_profile import slowed
from simulator.profile import Profile
from simulator.profiling.route_fit import Predicted, Served, means_of, predicted
from simulator.records import Record
from simulator.shadowing.readings import Buckets, Seen, in_buckets
from simulator.shadowing.search import evolve, minimize
from simulator.traces import Arrival, Trace

ENOUGH_REQUESTS = 1_500
"""Engines are alike: no more are played once they have so many requests together."""

BUDGETS = (512, 1024, 2048, 4096, 8192, 16_384)
"""Values of `--max-num-batched-tokens` that are tried: metrics do not show it."""

POPULATION, GENERATIONS, EVALUATIONS = 14, 20, 150
"""Of the search in the whole box, and how often an error is computed in the search around what that finds."""

GOOD, TRIES = 0.08, 3
"""An error at which no other search is begun; and how many at most."""

STEP, TOLERANCE = 0.15, 1e-3

WEIGHTS = {"ttft": 0.5, "prefill": 0.5, "step": 1.0, "queue": 0.25}
"""Of errors of means, as logarithms."""

SHAPE = 4.0
"""Weight of the mean distance between two distributions."""


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of some engines, in order of arrival, and the length of the trace's blocks in tokens."""

    engines: tuple[tuple[Arrival, ...], ...]
    block_tokens: int
    length_s: float
    cold_tokens: int
    """Prompt tokens that were computed."""
    cold_contexts: float
    """The sum over them of the tokens before each."""

    @property
    def max_prompt(self) -> int:
        return max(one.prompt_tokens for arrivals in self.engines for one in arrivals)

    @property
    def output_tokens(self) -> int:
        return sum(one.output_tokens for arrivals in self.engines for one in arrivals)


def load_of(trace: Trace, records: Sequence[Record]) -> Load:
    """Return which requests went where in a replay, of as many engines as have enough together."""
    by_pod: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda one: one.index):
        by_pod.setdefault(record.pod or "", []).append(record)
    engines, chosen = list[tuple[Arrival, ...]](), list[Record]()
    for served in by_pod.values():
        if len(chosen) >= ENOUGH_REQUESTS:
            break
        engines.append(tuple(trace.arrivals[one.index] for one in served))
        chosen += served
    return Load(
        engines=tuple(engines),
        block_tokens=trace.block_tokens or 1,
        length_s=max(trace.length_s, 1e-3),
        cold_tokens=sum(one.cold_tokens for one in chosen),
        cold_contexts=sum(one.cold_tokens * ((one.cached_tokens or 0) + one.cold_tokens / 2) for one in chosen),
    )


def first_guess(seen: Seen, base: Profile, *, is_measured: bool) -> Profile:
    """Return the sizes that the metrics show, and without a measured profile the speeds divided out of counters."""
    sizes: dict[str, float | int | None] = {
        "kv_capacity_tokens": seen.kv_capacity_tokens,
        "block_size": seen.block_size,
    }
    speeds: dict[str, float | int | None] = {
        "prefill_tokens_per_s": seen.prefill_tokens_per_s,
        "step_base_s": seen.step_s,
    }
    found = sizes if is_measured else sizes | speeds
    return replace(base, **{name: value for name, value in found.items() if value})  # type: ignore[arg-type]


def calibrate(first: Profile, load: Load, seen: Seen, *, is_measured: bool) -> Profile:
    """Return the profile with which the load comes nearest to the metrics; the first one where they show no TTFT."""
    if not seen.ttft or seen.ttft_s is None:
        return first
    if is_measured:
        _, point = minimize(lambda at: error_of(slowed(first, math.exp(at[0])), load, seen), [0.0], 0.4, 40, TOLERANCE)
        return slowed(first, math.exp(point[0]))
    space = _Space(first, load, seen)
    best, found = math.inf, first
    for seed in range(TRIES):
        _, rough = evolve(space.error, space.box, population=POPULATION, generations=GENERATIONS, seed=seed)
        error, point = minimize(space.error, rough, STEP, EVALUATIONS, TOLERANCE)
        if error < best:
            best, found = error, space.profile(point)
        if best < GOOD:
            break
    return found


class _Space:
    """Profiles by six numbers that each change something else of what metrics show, and so can be found one by one:

    logarithms of the seconds of all prefill, of the context at which prefill costs twice as much, of a step with the
    mean number of sequences, of what one sequence adds to it, and of the API server's seconds; which token budget.
    """

    def __init__(self, first: Profile, load: Load, seen: Seen) -> None:
        self._first, self._load, self._seen = first, load, seen
        step_s = seen.step_s or first.step_base_s
        self._sequences = max(load.output_tokens * step_s / load.length_s / len(load.engines), 1.0)
        prefill_s = load.cold_tokens / first.prefill_tokens_per_s
        self.box = [
            (math.log(middle * low), math.log(middle * high))
            for middle, low, high in (
                (max(prefill_s, 1e-6), 0.15, 1.5),
                (float(load.max_prompt), 0.1, 64.0),
                (step_s, 0.1, 1.2),
                (1e-4, 0.1, 50.0),
                (1e-3, 0.5, 50.0),
            )
        ]
        self._budgets = [one for one in BUDGETS if one >= first.max_num_seqs] or [first.max_num_batched_tokens]
        self.box.append((0.0, len(self._budgets) - 1e-6))

    def profile(self, point: Sequence[float]) -> Profile:
        """Return the profile of a point."""
        prefill_s, context, step_s, sequence_s, request_s = (math.exp(one) for one in point[:-1])
        sequence_s = min(sequence_s, 0.9 * step_s / self._sequences)
        return replace(
            self._first,
            prefill_tokens_per_s=(self._load.cold_tokens + self._load.cold_contexts / context) / prefill_s,
            prefill_quadratic_tokens=context,
            step_base_s=step_s - self._sequences * sequence_s,
            step_per_sequence_s=sequence_s,
            request_s=request_s,
            max_num_batched_tokens=self._budgets[int(point[-1])],
        )

    def error(self, point: Sequence[float]) -> float:
        """Return how far the load is from the metrics at a point; infinite outside the box."""
        if any(not low <= one <= high for one, (low, high) in zip(point, self.box, strict=True)):
            return math.inf
        return error_of(self.profile(point), self._load, self._seen)


def error_of(profile: Profile, load: Load, seen: Seen) -> float:
    """Return how far the load on engines of this profile is from the metrics; infinite where it does not fit them."""
    times = list[Predicted]()
    try:
        for arrivals in load.engines:
            served = [Served(arrival, 0.0, None) for arrival in arrivals]
            times += predicted(profile, served, load.block_tokens)
    except (ValueError, KeyError):
        return math.inf
    means, ttft_s = means_of(times), [one.ttft_s for one in times]
    pairs = {
        "ttft": (fmean(ttft_s), seen.ttft_s),
        "prefill": (means.prefill_s, seen.prefill_s),
        "step": (means.decode_s, seen.step_s),
    }
    # Engines that queue next to nothing say next to nothing by it.
    if seen.queue_s and seen.ttft_s and seen.queue_s > 0.1 * seen.ttft_s:
        pairs["queue"] = means.queue_s, seen.queue_s
    error = sum(WEIGHTS[name] * _distance(found, wanted) for name, (found, wanted) in pairs.items())
    shapes = (
        (ttft_s, seen.ttft),
        ([one.queue_s for one in times], seen.queue),
        ([one.prefill_s for one in times], seen.prefill),
        ([one.tpot_s for one in times if one.tpot_s is not None], seen.pace),
    )
    return error + SHAPE * sum(_apart(values, buckets) for values, buckets in shapes)


def _distance(found: float | None, wanted: float | None) -> float:
    if found is None or not wanted:
        return 0.0
    return abs(math.log(max(found, 1e-9) / wanted))


def _apart(values: Sequence[float], seen: Buckets) -> float:
    """Return the mean distance of two distributions over the buckets in which either has any."""
    gaps = []
    if not values or not seen:
        return 0.0
    for (_, mine), (_, other) in zip(in_buckets(values, seen), seen, strict=True):
        shares = mine / len(values), other / seen[-1][1]
        if max(shares) > 0.01 and min(shares) < 0.99:
            gaps.append(abs(shares[0] - shares[1]))
    return fmean(gaps) if gaps else 0.0
