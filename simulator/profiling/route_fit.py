"""Fits an engine's speeds to a gateway's route log: each recorded engine's requests are played on a simulated one.

Pure: rows in, profile and errors out. Sizes (blocks, KV, sequences, tokens a step) are not visible in a log and come
from the profile to start from. Waiting inside the gateway counts as the engine's; a log of a fleet that never queued
requests is the one to use. The engine's own histograms of the same time say what of a first token is not the engine's,
and how far the fitted engine is from their means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import fmean, median
from typing import Any

from simulator.api_server import ApiServer
from simulator.engine import Engine
from simulator.profile import Profile
from simulator.profiling.fitting import Fit, NotEnoughSeenError
from simulator.profiling.histograms import EngineTimes
from simulator.replay import engine_blocks
from simulator.route_log import BLOCK_TOKENS, RouteRow, trace_of_routes
from simulator.sequence import Milestone, MilestoneKind
from simulator.sequence import Sequence as EngineSequence
from simulator.traces import Arrival

MIN_ROWS = 50

SEARCHED = (
    *("prefill_tokens_per_s", "prefill_quadratic_tokens", "step_base_s"),
    *("step_per_sequence_s", "step_per_kv_token_s", "request_s"),
)
"""Fields that are fitted; a log tells too little for a table of steps."""

FIRST_GUESS = {"step_per_sequence_s": 1e-4, "step_per_kv_token_s": 1e-8, "request_s": 1e-3}
"""Where a search begins that would never leave 0."""

FACTORS = (4.0, 2.0, 1.4, 1.15, 1.05)
"""Steps of the search, each until no field gains by it."""

WORST = 1.5
"""An error counts as at most this: exp(1.5) times too much."""


@dataclass(frozen=True, slots=True)
class Served:
    """One recorded request."""

    arrival: Arrival
    ttft_s: float
    tpot_s: float | None
    """None with one token."""


def served_of(rows: Iterable[RouteRow]) -> list[list[Served]]:
    """Return the requests of the most requested model by engine, in order of arrival, those without times left out."""
    every = list(rows)
    model = Counter(row.model for row in every).most_common(1)[0][0] if every else ""
    chosen = sorted((row for row in every if row.model == model), key=lambda row: row.started_at_s)
    engines: dict[int, list[Served]] = {}
    for row, arrival in zip(chosen, trace_of_routes("log", chosen).arrivals, strict=True):
        if row.ttft_s is None or row.duration_s is None:
            continue
        gaps = row.output_tokens - 1
        tpot_s = (row.duration_s - row.ttft_s) / gaps if gaps > 0 else None
        engines.setdefault(arrival.engine or 0, []).append(Served(arrival, row.ttft_s, tpot_s))
    return list(engines.values())


@dataclass(frozen=True, slots=True)
class Predicted:
    """One request on the simulated engine. `queue_s` and `prefill_s` are the engine's own, without the API server."""

    ttft_s: float
    tpot_s: float | None
    queue_s: float
    prefill_s: float
    output_tokens: int


def fit_routes(base: Profile, engines: Sequence[Sequence[Served]], times: EngineTimes | None = None) -> Fit:
    """Search for the speeds with which the recorded times come back; `times` are the engines' own means.

    Raises `NotEnoughSeenError` below 50 requests.
    """
    known = times or EngineTimes()
    if sum(map(len, engines)) < MIN_ROWS:
        raise NotEnoughSeenError(f"a route log of at least {MIN_ROWS} answered requests is wanted")
    first: dict[str, Any] = {name: getattr(base, name) or FIRST_GUESS[name] for name in SEARCHED}
    searched: tuple[str, ...] = SEARCHED
    if known.prefill_s is not None:
        # What of a first token is not the engine's: that much is known, and is not searched for.
        searched = tuple(name for name in SEARCHED if name != "request_s")
        ttft_s = fmean(one.ttft_s for served in engines for one in served)
        first["request_s"] = max(ttft_s - known.prefill_s - (known.queue_s or 0.0), FIRST_GUESS["request_s"])
    best = replace(base, step_table=(), **first)
    min_loss = _loss(best, engines)
    for factor in FACTORS:
        has_gained = True
        while has_gained:
            has_gained = False
            for name in searched:
                for change in (factor, 1.0 / factor):
                    other = replace(best, **{name: getattr(best, name) * change})
                    loss = _loss(other, engines)
                    if loss < min_loss * 0.999:
                        best, min_loss, has_gained = other, loss, True
    return Fit(best, _spread(best, engines, known))


def predicted(profile: Profile, served: Sequence[Served], block_tokens: int = BLOCK_TOKENS) -> list[Predicted]:
    """Return the times of each request on one simulated engine that gets all of them when they came.

    `block_tokens`: of a block of their arrivals. Raises ValueError where one never fits the engine.
    """
    engine, api_server = Engine(profile), ApiServer(profile)
    milestones, entered_s = list[Milestone](), list[float]()
    for number, one in enumerate(served):
        arrival = one.arrival
        blocks = engine_blocks(arrival, block_tokens, profile.block_size)
        due = api_server.arrive(arrival.prompt_tokens, arrival.at_s)
        entered_s.append(due)
        milestones += engine.advance(due)
        engine.submit(EngineSequence(str(number), arrival.prompt_tokens, arrival.output_tokens, blocks), due)
    milestones += engine.advance(float("inf"))
    firsts = {one.sequence_id: one.at for one in milestones if one.kind is MilestoneKind.FIRST_TOKEN}
    ends = {one.sequence_id: one for one in milestones if one.kind is MilestoneKind.FINISHED}
    times = []
    for number, (one, due) in enumerate(zip(served, entered_s, strict=True)):
        first, end = firsts[str(number)], ends[str(number)]
        gaps, admitted = end.output_tokens - 1, end.admitted_at or due
        times.append(
            Predicted(
                first - one.arrival.at_s,
                (end.at - first) / gaps if gaps else None,
                max(admitted - due, 0.0),
                first - admitted,
                end.output_tokens,
            )
        )
    return times


def means_of(times: Sequence[Predicted]) -> EngineTimes:
    """Return what an engine's own histograms would show of these requests."""
    gaps = [(one.tpot_s * (one.output_tokens - 1), one.output_tokens - 1) for one in times if one.tpot_s is not None]
    count = sum(tokens for _, tokens in gaps)
    return EngineTimes(
        fmean(one.queue_s for one in times),
        fmean(one.prefill_s for one in times),
        sum(seconds for seconds, _ in gaps) / count if count else None,
    )


Errors = dict[str, list[float]]
"""By kind, logarithms of predicted by known."""


def _errors(profile: Profile, engines: Sequence[Sequence[Served]], known: EngineTimes) -> Errors:
    errors: Errors = {"ttft": [], "tpot": []}
    every: list[Predicted] = []
    for served in engines:
        times = predicted(profile, served)
        every += times
        for one, time in zip(served, times, strict=True):
            if one.ttft_s > 0:
                errors["ttft"].append(log(time.ttft_s / one.ttft_s))
            if one.tpot_s and time.tpot_s:
                errors["tpot"].append(log(time.tpot_s / one.tpot_s))
    if not known.is_empty:
        means = means_of(every)
        pairs = [(known.prefill_s, means.prefill_s), (known.decode_s, means.decode_s)]
        # An engine that queues next to nothing says next to nothing by it.
        if known.queue_s is not None and known.prefill_s is not None and known.queue_s > 0.1 * known.prefill_s:
            pairs.append((known.queue_s, means.queue_s))
        errors["engine"] = [log(max(mean, 1e-9) / value) for value, mean in pairs if value and mean is not None]
    return errors


def _loss(profile: Profile, engines: Sequence[Sequence[Served]]) -> float:
    """Of requests only: means beside them would make ridges that a search field by field does not leave."""
    every = _errors(profile, engines, EngineTimes()).values()
    return sum(fmean(min(abs(error), WORST) for error in errors) for errors in every if errors)


def _spread(profile: Profile, engines: Sequence[Sequence[Served]], known: EngineTimes) -> dict[str, float]:
    every = _errors(profile, engines, known).items()
    return {kind: median(map(abs, errors)) for kind, errors in every if errors}
