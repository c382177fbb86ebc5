"""Compares requests of a canary with requests of the standing pods, like with like.

Like means: of the same model and group of tenants, both served by a pair or both by one engine, prompt and uncached
tokens alike in powers of two, for times per token answers alike too. Each request of the canary is set against the last
one of the standing pods, which is used once: as many comparisons, as many independent ones. Pure; bounded in memory.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from math import log2
from typing import NamedTuple

from msgspec import Struct

from routing.canary.evidence import NO_EVIDENCE, DifferenceEvidence, RatioEvidence, TrialEvidence, cell_of

STALE_S = 300.0
"""A request of the standing pods is compared with nothing that ends later than this after it."""

MAX_KINDS = 4_096
"""Of which the last request is kept. Beyond it the group of tenants with most of them loses its oldest."""

MIN_TIME_S = 1e-6


class ServedAttempt(Struct, frozen=True):
    """One attempt at a pod, or a pair of pods, that has ended by its own or by its pod's doing."""

    model: str
    is_pair: bool
    prompt_tokens: float
    uncached_tokens: float
    group: int | None = None
    """Of its tenant (`group_of`); None where tenants are not told apart."""
    failed: bool = False
    """By the fault of its pod."""
    ttft_s: float | None = None
    """None where it failed or was not streamed."""
    output_tokens: int = 0
    tpot_s: float | None = None
    """Seconds per token behind the first; None where there are none."""


class _Kind(NamedTuple):
    model: str
    is_pair: bool
    prompt: int
    uncached: int
    output: int | None
    """Of times per token only."""


class _Standing(NamedTuple):
    attempt: ServedAttempt
    at_s: float


class PairedComparisons:
    """Comparisons that are not yet part of the evidence that gateways share; one per gateway process."""

    def __init__(self) -> None:
        self._standing: defaultdict[int | None, OrderedDict[_Kind, _Standing]] = defaultdict(OrderedDict)
        """By group of tenants."""
        self._pending = NO_EVIDENCE

    def observe_standing(self, attempt: ServedAttempt, now_s: float) -> None:
        """Note an attempt of the standing pods: the next one of the canary of its kind is compared with it."""
        standing = self._standing[attempt.group]
        for kind in _kinds_of(attempt):
            standing[kind] = _Standing(attempt, now_s)
            standing.move_to_end(kind)
        while sum(map(len, self._standing.values())) > MAX_KINDS:
            max(self._standing.values(), key=len).popitem(last=False)

    def observe_canary(self, attempt: ServedAttempt, now_s: float) -> None:
        """Compare an attempt of the canary."""
        for kind in _kinds_of(attempt):
            other = self._standing[attempt.group].pop(kind, None)
            if other is None or now_s - other.at_s > STALE_S:
                continue
            found = (
                _compared_tpot(attempt, other.attempt) if kind.output is not None else _compared(attempt, other.attempt)
            )
            self._pending += found.of_group(attempt.group)

    def add_quality(self, outcome: int) -> None:
        """Add a comparison of answers to one request: 1 where the canary's is worse, -1 better, 0 alike."""
        self._pending += TrialEvidence(quality=_difference(outcome))

    def take(self) -> TrialEvidence:
        """Return the comparisons since the last call, and forget them."""
        taken, self._pending = self._pending, NO_EVIDENCE
        return taken

    def give_back(self, taken: TrialEvidence) -> None:
        """Take comparisons back that could not be shared."""
        self._pending += taken


def _kinds_of(attempt: ServedAttempt) -> list[_Kind]:
    all_times = _Kind(
        attempt.model, attempt.is_pair, _bucket(attempt.prompt_tokens), _bucket(attempt.uncached_tokens), None
    )
    return (
        [all_times]
        if attempt.tpot_s is None
        else [all_times, all_times._replace(output=_bucket(attempt.output_tokens))]
    )


def _compared(canary: ServedAttempt, standing: ServedAttempt) -> TrialEvidence:
    errors = _difference(canary.failed - standing.failed)
    if canary.ttft_s is None or standing.ttft_s is None:
        return TrialEvidence(errors=errors)
    return TrialEvidence(ttft=_ratio(canary.ttft_s, standing.ttft_s), errors=errors)


def _compared_tpot(canary: ServedAttempt, standing: ServedAttempt) -> TrialEvidence:
    if canary.tpot_s is None or standing.tpot_s is None:
        return NO_EVIDENCE
    return TrialEvidence(tpot=_ratio(canary.tpot_s, standing.tpot_s))


def _ratio(canary_s: float, standing_s: float) -> RatioEvidence:
    return RatioEvidence({cell_of(max(canary_s, MIN_TIME_S) / max(standing_s, MIN_TIME_S)): 1})


def _difference(outcome: int) -> DifferenceEvidence:
    return DifferenceEvidence(worse=int(outcome > 0), better=int(outcome < 0), same=int(outcome == 0))


def _bucket(size: float) -> int:
    return int(log2(max(size, 0.0) + 1.0))
