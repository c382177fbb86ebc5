"""Fits an engine's step times to what was seen of it. Pure: observations in, profile and residuals out.

A step is a non-decreasing, piecewise linear function of its batched tokens, plus attention of chunks (tokens times what
stands before them), plus a part for each sequence and each token of KV. All are linear in their coefficients, none of
which can be negative, and every observation is a sum of steps: one least squares of relative errors finds them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from simulator.profile import Profile
from simulator.profiling.least_squares import fit_non_negative
from simulator.profiling.observations import DecodeSteps, IdlePrefill, Intrusion, Seen, Shape, chunks_of

NO_GROWTH_TOKENS = 1e12
"""L0 of an engine whose attention costs nothing."""

STEPS_AHEAD = 1.5
"""Steps that a short prompt waits for beside others, from which scheduling is asynchronous: it would be one without."""

SHORT_TOKENS = 128


class NotEnoughSeenError(ValueError):
    """Too little was observed for a fit."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A profile, and the median relative error of each kind of observation."""

    profile: Profile
    spread: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Row:
    kind: str
    features: list[float]
    seconds: float


class _Columns:
    """Which coefficient stands where: base, one increment per stretch of the table, then the rest."""

    def __init__(self, knots: Sequence[int], decode_tokens: int) -> None:
        self.knots = knots
        self.decode_tokens = decode_tokens
        stretches = len(knots) - 1
        self.attention, self.sequence, self.kv = (1 + stretches + place for place in range(3))
        self.cycle, self.wake, self.arrival, self.arrival_token = (4 + stretches + place for place in range(4))
        self.count = 8 + stretches

    def step(self, chunks: Sequence[tuple[int, int]], decoding: int, kv_tokens: float) -> list[float]:
        """Return the features of one step."""
        row = [0.0] * self.count
        row[0] = 1.0
        tokens = decoding * self.decode_tokens + sum(chunk for _, chunk in chunks)
        last = len(self.knots) - 2
        for place, (low, high) in enumerate(zip(self.knots, self.knots[1:], strict=False)):
            share = max((tokens - low) / (high - low), 0.0)
            row[1 + place] = share if place == last else min(share, 1.0)
        row[self.attention] = sum(chunk * (start + chunk / 2) for start, chunk in chunks)
        row[self.sequence] = decoding + len(chunks)
        row[self.kv] = kv_tokens
        return row


def fit(seen: Seen) -> Fit:
    """Fit a profile. Raises `NotEnoughSeenError` without prefills of three lengths and decodes of two batch sizes."""
    if len({one.tokens for one in seen.idle}) < 3 or len({one.sequences for one in seen.decode}) < 2:
        raise NotEnoughSeenError("a fit wants prefills of three lengths and decodes of two batch sizes")
    room = seen.shape.max_num_batched_tokens
    columns, idle = _Columns(_knots(seen), _decode_tokens(seen.shape)), _typical(seen.idle)
    rows = [
        *(_idle_row(columns, one, room) for one in idle if one.engine_s is not None),
        *(_decode_row(columns, one) for one in seen.decode),
        *(_intrusion_row(columns, one, room) for one in seen.intrusions if one.extra_s > 0),
    ]
    weighted = [[value / row.seconds for value in row.features] for row in rows]
    found = fit_non_negative(weighted, [1.0] * len(rows))
    without_requests = _profile(columns, found, seen.shape)
    requests = _fit_requests(idle, without_requests)
    profile = replace(without_requests, request_s=requests[0], request_token_s=requests[1])
    profile = replace(profile, async_scheduling=_waits_for_two(seen, profile))
    spread = {kind: _error(kind, rows, found) for kind in ("prefill", "decode", "mixed")}
    spread["request"] = _ttft_error(seen.idle, profile)
    return Fit(profile, spread)


def _waits_for_two(seen: Seen, profile: Profile) -> bool:
    """Whether a short prompt that arrives as a step begins waits for that step and another one."""
    waits = []
    for one in seen.intrusions:
        if 0 < one.tokens <= SHORT_TOKENS and not one.cached:
            alone_s = profile.step_s([], one.sequences, int(one.kv_tokens))
            own_s = alone_s + one.extra_s + profile.request_handling_s(one.tokens)
            waits.append((one.client_s - own_s) / alone_s)
    return len(waits) >= 3 and median(waits) > STEPS_AHEAD


def _typical(idle: Sequence[IdlePrefill]) -> list[IdlePrefill]:
    """Of several prompts of one length the median: a disturbed one says nothing about the engine."""
    lengths: dict[int, list[IdlePrefill]] = {}
    for one in idle:
        lengths.setdefault(one.tokens, []).append(one)
    return [
        IdlePrefill(tokens, median(one.client_s for one in same), _median_known(one.engine_s for one in same))
        for tokens, same in lengths.items()
    ]


def _median_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _decode_tokens(shape: Shape) -> int:
    """Tokens of a step for one decoding sequence."""
    return 1 + (shape.speculation.tokens if shape.speculation else 0)


def _knots(seen: Seen) -> list[int]:
    """The sizes of steps that were seen: between them nothing is known."""
    room = seen.shape.max_num_batched_tokens
    each = _decode_tokens(seen.shape)
    sizes = {1, *(min(one.tokens, room) for one in seen.idle), *(each * one.sequences for one in seen.decode)}
    knots: list[int] = []
    for size in sorted(sizes):
        # Closer ones would share their error between them.
        if not knots or size >= 1.25 * knots[-1]:
            knots.append(size)
    return knots


def _idle_row(columns: _Columns, one: IdlePrefill, room: int) -> _Row:
    features = _sum(columns.step([chunk], 0, 0.0) for chunk in chunks_of(one.tokens, 0, room))
    # The histograms end with the step; what comes between two steps is seen only where one follows the other.
    features[columns.cycle] = features[0] - 1.0
    features[columns.wake] = 1.0
    return _Row("prefill", features, one.engine_s or 0.0)


def _decode_row(columns: _Columns, one: DecodeSteps) -> _Row:
    features = columns.step([], one.sequences, one.kv_tokens)
    features[columns.cycle] = 1.0
    return _Row("decode", features, one.step_s)


def _intrusion_row(columns: _Columns, one: Intrusion, room: int) -> _Row:
    chunks = list(chunks_of(one.tokens, one.cached, room - one.sequences * columns.decode_tokens))
    alone = columns.step([], one.sequences, one.kv_tokens)
    features = [0.0] * columns.count
    for chunk in chunks:
        mixed = columns.step([chunk], one.sequences, one.kv_tokens)
        features = [total + more - less for total, more, less in zip(features, mixed, alone, strict=True)]
    features[columns.arrival] = 1.0
    features[columns.arrival_token] = one.tokens + one.cached
    return _Row("mixed", features, one.extra_s)


def _sum(rows: Iterable[list[float]]) -> list[float]:
    return [sum(values) for values in zip(*rows, strict=True)]


def _profile(columns: _Columns, found: Sequence[float], shape: Shape) -> Profile:
    seconds, table = found[0] + found[columns.cycle], []
    for place, tokens in enumerate(columns.knots):
        seconds += found[place] if place else 0.0
        table.append((tokens, max(seconds, 1e-6)))
    # What reports and given-seconds policies use: the speed of a long prompt's constant part.
    (low, low_s), (high, high_s) = table[-2:]
    rate = (high - low) / (high_s - low_s) if high_s > low_s else high / high_s
    growth = found[columns.attention]
    return Profile(
        prefill_tokens_per_s=rate,
        prefill_quadratic_tokens=1.0 / (growth * rate) if growth else NO_GROWTH_TOKENS,
        step_base_s=table[0][1],
        step_per_sequence_s=found[columns.sequence],
        step_per_kv_token_s=found[columns.kv],
        max_num_batched_tokens=max(shape.max_num_batched_tokens, shape.max_num_seqs * _decode_tokens(shape)),
        # What drafting takes is in the step times.
        speculative_tokens=shape.speculation.tokens if shape.speculation else 0,
        acceptance_rate=shape.speculation.acceptance_rate if shape.speculation else 0.0,
        max_num_seqs=shape.max_num_seqs,
        kv_capacity_tokens=shape.kv_blocks * shape.block_size,
        block_size=shape.block_size,
        caches_prefixes=shape.caches_prefixes,
        step_table=tuple(table),
        request_step_s=found[columns.arrival],
        request_step_token_s=found[columns.arrival_token],
        wake_s=max(found[columns.wake] - found[columns.cycle], 0.0),
    )


def predicted_prefill_s(profile: Profile, tokens: int, cached: int = 0) -> float:
    """Return the seconds of a prompt's steps, alone on the engine, without the API server's."""
    return sum(profile.step_s([chunk], 0, 0) for chunk in chunks_of(tokens, cached, profile.max_num_batched_tokens))


def _fit_requests(idle: Sequence[IdlePrefill], profile: Profile) -> tuple[float, float]:
    """What a first token takes beyond the engine's time: a constant, and a part per prompt token."""
    rows, values = [], []
    for one in idle:
        # An error of the steps must not count here more than the overhead itself.
        weight = 1.0 / one.client_s
        rows.append([weight, weight * one.tokens])
        engine_s = one.engine_s or profile.wake_s + predicted_prefill_s(profile, one.tokens)
        values.append(max(one.client_s - engine_s, 0.0) * weight)
    found = fit_non_negative(rows, values)
    return found[0], found[1]


def _error(kind: str, rows: Sequence[_Row], found: Sequence[float]) -> float:
    errors = []
    for row in rows:
        if row.kind == kind:
            predicted = sum(value * coefficient for value, coefficient in zip(row.features, found, strict=True))
            errors.append(abs(predicted / row.seconds - 1.0))
    return median(errors) if errors else 0.0


def _ttft_error(idle: Sequence[IdlePrefill], profile: Profile) -> float:
    def predicted_s(one: IdlePrefill) -> float:
        return profile.request_handling_s(one.tokens) + profile.wake_s + predicted_prefill_s(profile, one.tokens)

    return median(abs(predicted_s(one) / one.client_s - 1.0) for one in idle)
