"""Counts of requests, by model and by tenant, each request costing a few microseconds.

Plain numbers in lists: a client library's locks and label look-ups would cost more than routing the request. How they
are shown is `exposition.py`'s affair. Names are bounded: what nobody serves, and tenants beyond a cap, are `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.pipeline.outcome import Outcome
from routing.decision.receipt import Attempt
from routing.rejection import Reason

OTHER = "other"

COUNTED_AT_ONCE = 64
"""One by one, each between two requests, they take twice as long."""

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
"""vLLM's, so that both can stand in one picture. The next two as well."""

TPOT_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)

DURATION_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)


class Histogram:
    """Counts per bucket and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: Histogram) -> None:
        """Count what another of the same bounds has counted."""
        self.counts = [own + its for own, its in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


@dataclass(slots=True)
class ModelTally:
    """What was asked of one model."""

    requests: Counter[tuple[int, str]] = field(default_factory=Counter)
    """By status and reason of refusal ('' where there was none)."""
    retries: Counter[str] = field(default_factory=Counter)
    """Attempts that another attempt followed, by how they ended."""
    ttft_s: Histogram = field(default_factory=lambda: Histogram(TTFT_BUCKETS))
    tpot_s: Histogram = field(default_factory=lambda: Histogram(TPOT_BUCKETS))
    duration_s: Histogram = field(default_factory=lambda: Histogram(DURATION_BUCKETS))
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    shared_answers: int = 0
    """Requests that were given another's answer as well."""
    resumed: int = 0
    """How often a stream was gone on with by another pod."""
    unresumed: Counter[str] = field(default_factory=Counter)
    """Streams that were cut and not gone on with, by why."""
    wasted_tokens: int = 0
    """Computed again to go on with streams."""
    judged_requests: int = 0
    """Those whose engine told how much it reused: the next four are about these only."""
    predicted_warm_tokens: int = 0
    real_warm_tokens: int = 0
    missed_warm_tokens: int = 0
    """Sum of differences, whichever way: predictions that are wrong both ways must not look right on average."""
    predicted_ttft_s: float = 0.0
    real_ttft_s: float = 0.0


@dataclass(slots=True)
class TenantTally:
    """What one tenant took."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class Tallies:
    """All counts of one gateway. Outcomes are counted a few at a time, or when somebody looks."""

    def __init__(
        self,
        is_known: Callable[[str], bool],
        *,
        judge: Callable[[Attempt], None] = lambda _: None,
        most_models: int = 200,
        most_tenants: int = 100,
    ) -> None:
        """`judge` is told of every answer's prediction of warmth."""
        self._models: dict[str, ModelTally] = {}
        self._tenants: dict[str, TenantTally] = {}
        self._fresh: list[Outcome] = []
        self.early: Counter[Reason] = Counter()
        """Refusals that came before there was a request: bad JSON, no key, too large."""
        self._is_known = is_known
        self._judge = judge
        self._most_models = most_models
        self._most_tenants = most_tenants

    def witness(self, outcome: Outcome) -> None:
        """Count a request that has ended."""
        self._fresh.append(outcome)
        if len(self._fresh) == COUNTED_AT_ONCE:
            self._count_fresh()

    @property
    def models(self) -> dict[str, ModelTally]:
        self._count_fresh()
        return self._models

    @property
    def tenants(self) -> dict[str, TenantTally]:
        self._count_fresh()
        return self._tenants

    def count_early(self, reason: Reason) -> None:
        """Count a refusal at the door."""
        self.early[reason] += 1

    def _count_fresh(self) -> None:
        for outcome in self._fresh:
            self._count(self._model(outcome.request.model), outcome)
            if outcome.tenant is not None:
                self._count_tenant(self._tenant(outcome.tenant), outcome)
            if outcome.attempts:
                self._judge(outcome.attempts[-1])
        self._fresh.clear()

    @staticmethod
    def _count(tally: ModelTally, outcome: Outcome) -> None:
        tally.requests[outcome.status, outcome.reason.value if outcome.reason else ""] += 1
        tally.duration_s.observe(outcome.duration_s)
        if outcome.shared is not None:
            tally.shared_answers += 1
        if outcome.resumed or outcome.unresumed:
            tally.resumed += outcome.resumed
            tally.wasted_tokens += outcome.wasted_tokens
        if outcome.unresumed is not None:
            tally.unresumed[outcome.unresumed] += 1
        if outcome.ttft_s is not None:
            tally.ttft_s.observe(outcome.ttft_s)
        usage, attempts = outcome.usage, outcome.attempts
        if usage is not None:
            tally.prompt_tokens += usage.prompt_tokens
            tally.output_tokens += usage.completion_tokens
            tally.cached_tokens += usage.cached_tokens or 0
            if outcome.decode_s is not None and outcome.request.stream and usage.completion_tokens > 1:
                tally.tpot_s.observe(outcome.decode_s / (usage.completion_tokens - 1))
        for attempt in attempts[:-1]:
            tally.retries[attempt.ended] += 1
        if attempts and (last := attempts[-1]).real_warm_tokens is not None:
            tally.judged_requests += 1
            tally.predicted_warm_tokens += last.predicted_warm_tokens
            tally.real_warm_tokens += last.real_warm_tokens
            tally.missed_warm_tokens += abs(last.predicted_warm_tokens - last.real_warm_tokens)
            if last.real_ttft_s is not None:
                tally.predicted_ttft_s += last.predicted_ttft_s
                tally.real_ttft_s += last.real_ttft_s

    @staticmethod
    def _count_tenant(tally: TenantTally, outcome: Outcome) -> None:
        tally.requests += 1
        if (usage := outcome.usage) is not None:
            tally.prompt_tokens += usage.prompt_tokens
            tally.cached_tokens += usage.cached_tokens or 0
            tally.output_tokens += usage.completion_tokens

    def _model(self, name: str) -> ModelTally:
        tally = self._models.get(name)
        if tally is None:
            # A client must not be able to make series by inventing models.
            if len(self._models) >= self._most_models or not self._is_known(name):
                name = OTHER
            tally = self._models.setdefault(name, ModelTally())
        return tally

    def _tenant(self, name: str) -> TenantTally:
        tally = self._tenants.get(name)
        if tally is None:
            if len(self._tenants) >= self._most_tenants:
                name = OTHER
            tally = self._tenants.setdefault(name, TenantTally())
        return tally
