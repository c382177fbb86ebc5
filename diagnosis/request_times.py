"""Where the seconds of requests went: gateway, engine queue, prefill, transfer, decode, stalls. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from diagnosis.distribution import TIME_LIMITS_S, TOKEN_LIMITS, Distribution
from routing.facts import Role

MAX_KEYS = 64
"""Kinds of traffic that are kept apart; those beyond are counted under the empty model."""


class Phase(StrEnum):
    """Parts of a request's time, in their order."""

    GATEWAY = "gateway_wait"
    """Reading, admission, choice and retries."""
    QUEUE = "engine_queue"
    PREFILL = "prefill"
    TRANSFER = "transfer"
    """From the end of a pair's prefill to the decoding engine's first token."""
    DECODE = "decode"
    STALL = "stall"
    """Silences within the stream that are longer than a few tokens take."""


class RequestClass(StrEnum):
    """Kinds of requests whose decoding differs."""

    PLAIN = "plain"
    CONSTRAINED = "constrained"
    """With tools or a schema: a grammar restricts the output."""


@dataclass(frozen=True, slots=True)
class TrafficKey:
    """One kind of traffic."""

    model: str = ""
    pool: str = ""
    role: Role = Role.EITHER
    request_class: RequestClass = RequestClass.PLAIN


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Requests of one kind that ended within a window. A phase that was not measured is absent."""

    start_s: float
    end_s: float
    requests: float = 0.0
    phases: Mapping[Phase, Distribution] = field(default_factory=dict)
    """Seconds a request."""
    prompt_tokens: Distribution | None = None
    cold_tokens: Distribution | None = None
    """Prompt tokens that were computed."""
    output_tokens: Distribution | None = None

    def plus(self, other: RequestTimes) -> RequestTimes:
        """Add another window's requests."""
        phases = dict(self.phases)
        for phase, held in other.phases.items():
            phases[phase] = phases[phase].plus(held) if phase in phases else held
        return replace(
            self,
            start_s=min(self.start_s, other.start_s),
            end_s=max(self.end_s, other.end_s),
            requests=self.requests + other.requests,
            phases=phases,
            prompt_tokens=_sum(self.prompt_tokens, other.prompt_tokens),
            cold_tokens=_sum(self.cold_tokens, other.cold_tokens),
            output_tokens=_sum(self.output_tokens, other.output_tokens),
        )


def _sum(one: Distribution | None, other: Distribution | None) -> Distribution | None:
    return other if one is None else one.plus(other)


@dataclass(frozen=True, slots=True)
class RequestMoments:
    """When things happened to one request, on one clock; None where they did not, or were not seen.

    `queue_s` is the engine's queue as its own metrics have it on average, or as the gateway predicted it.
    """

    arrived_s: float
    sent_s: float
    ended_s: float
    first_token_s: float | None = None
    queue_s: float | None = None
    prefilled_s: float | None = None
    """End of the prefill attempt of a pair."""
    transfer_s: float | None = None
    """Seconds of the hand-over, where known; else all between `prefilled_s` and the first token."""
    stall_s: float = 0.0
    """Sum of silences within the stream."""


def split(moments: RequestMoments) -> dict[Phase, float]:
    """Return the seconds of each phase; they add up to the time from arrival to end. Never below 0.

    Without a first token everything behind the gateway counts as queue and prefill.
    """
    first = moments.ended_s if moments.first_token_s is None else moments.first_token_s
    until_first = max(first - moments.sent_s, 0.0)
    transfer = 0.0
    if moments.prefilled_s is not None:
        behind = min(max(first - moments.prefilled_s, 0.0), until_first)
        transfer = behind if moments.transfer_s is None else min(moments.transfer_s, behind)
    elif moments.transfer_s is not None:
        transfer = min(moments.transfer_s, until_first)
    queue = min(max(moments.queue_s or 0.0, 0.0), until_first - transfer)
    streaming = max(moments.ended_s - first, 0.0)
    stall = min(max(moments.stall_s, 0.0), streaming)
    return {
        Phase.GATEWAY: max(moments.sent_s - moments.arrived_s, 0.0),
        Phase.QUEUE: queue,
        Phase.PREFILL: until_first - transfer - queue,
        Phase.TRANSFER: transfer,
        Phase.DECODE: streaming - stall,
        Phase.STALL: stall,
    }


class TimesBuilder:
    """Counts requests of one window, by kind of traffic. At most `MAX_KEYS` kinds."""

    __slots__ = ("_start_s", "_tallies")

    def __init__(self, start_s: float) -> None:
        self._start_s = start_s
        self._tallies: dict[TrafficKey, _Tally] = {}

    def observe(
        self,
        key: TrafficKey,
        seconds: Mapping[Phase, float],
        prompt_tokens: float | None = None,
        cold_tokens: float | None = None,
        output_tokens: float | None = None,
    ) -> None:
        """Count one ended request."""
        tally = self._tallies.get(key)
        if tally is None:
            if len(self._tallies) >= MAX_KEYS:
                key = TrafficKey()
            tally = self._tallies.setdefault(key, _Tally())
        tally.requests += 1
        for phase, value in seconds.items():
            if (held := tally.phases.get(phase)) is None:
                held = tally.phases[phase] = _Counts(TIME_LIMITS_S)
            held.observe(value)
        for counts, tokens in (
            (tally.prompt, prompt_tokens),
            (tally.cold, cold_tokens),
            (tally.output, output_tokens),
        ):
            if tokens is not None:
                counts.observe(tokens)

    def close(self, end_s: float) -> dict[TrafficKey, RequestTimes]:
        """Return the window's requests and begin the next window."""
        closed = {
            key: RequestTimes(
                start_s=self._start_s,
                end_s=end_s,
                requests=tally.requests,
                phases={phase: counts.frozen() for phase, counts in tally.phases.items()},
                prompt_tokens=tally.prompt.frozen_or_none(),
                cold_tokens=tally.cold.frozen_or_none(),
                output_tokens=tally.output.frozen_or_none(),
            )
            for key, tally in self._tallies.items()
        }
        self._start_s, self._tallies = end_s, {}
        return closed


class _Counts:
    __slots__ = ("_counts", "_limits", "_total")

    def __init__(self, limits: tuple[float, ...]) -> None:
        self._limits = limits
        self._counts = [0.0] * (len(limits) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._limits, value)] += 1
        self._total += value

    def frozen(self) -> Distribution:
        return Distribution(self._limits, tuple(self._counts), self._total)

    def frozen_or_none(self) -> Distribution | None:
        return self.frozen() if any(self._counts) else None


@dataclass(slots=True)
class _Tally:
    requests: float = 0.0
    phases: dict[Phase, _Counts] = field(default_factory=dict)
    prompt: _Counts = field(default_factory=lambda: _Counts(TOKEN_LIMITS))
    cold: _Counts = field(default_factory=lambda: _Counts(TOKEN_LIMITS))
    output: _Counts = field(default_factory=lambda: _Counts(TOKEN_LIMITS))


def joined(windows: Iterable[Mapping[TrafficKey, RequestTimes]]) -> dict[TrafficKey, RequestTimes]:
    """Add several windows' requests by kind of traffic."""
    summed: dict[TrafficKey, RequestTimes] = {}
    for window in windows:
        for key, times in window.items():
            summed[key] = summed[key].plus(times) if key in summed else times
    return summed
