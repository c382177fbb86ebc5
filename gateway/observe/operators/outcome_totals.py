"""Totals of requests for the operators' page: by tenant, by tier and model, and by pod, since the start and recent.

Metrics name few tenants, because each is a series; these totals name all of them. They hold numbers and names only.
Outcomes are added in the batches of `RequestCounters`; reading never waits.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from itertools import takewhile

from gateway.observe.metrics.latency import TTFT_BUCKETS
from gateway.pipeline.attempt import AttemptStatus
from gateway.pipeline.record import Outcome
from gateway.runtime.metric_families import OTHER, Histogram
from routing.decision.placement import AttemptReceipt
from routing.rejection import Reason

PERIOD_S = 300
"""Recent counts cover the current period of so many seconds and the one before it."""

MAX_TENANTS = 20_000
"""Tenants beyond it are added up as `other`; each takes less than a kilobyte."""

MAX_TIERS = 1_000
"""Pairs of tier and model."""

MAX_PODS = 4_096
"""Pods beyond it evict those that ended an attempt longest ago."""

TENANT_COLUMNS = (
    *("requests", "rejected", "failed", "slo_requests", "slo_met", "input_tokens", "cached_input_tokens"),
    *("output_tokens", "cost", "ttft_count", "ttft_s"),
)
"""What is counted by tenant. `rejected`: responses with a reason; `failed`: responses with a status of 5xx."""

TIER_COLUMNS = (*TENANT_COLUMNS, "queue_wait_s", "engine_ttft_s", "predicted_ttft_s")
"""By tier and model. The last three sum over the requests of `ttft_count`, of each the attempt that answered."""

POD_COLUMNS = (
    *("attempts", "failed_attempts", "ttft_count", "ttft_s", "predicted_ttft_s", "input_tokens"),
    *("cached_input_tokens", "predicted_cached_input_tokens"),
)
"""By pod; the tokens are those of attempts whose engine reported cached tokens."""

POD_FAILURES = frozenset(status.value for status in AttemptStatus if status.is_pod_failure)


class RecentTotals:
    """Counts of one subject: in this period, in the one before, and in all before those."""

    __slots__ = ("current", "past", "period", "previous", "reasons", "recent_reasons", "version")

    def __init__(self, width: int) -> None:
        self.current = array("d", bytes(8 * width))
        self.previous: array[float] | None = None
        self.past: array[float] | None = None
        self.period = 0
        self.version = 0
        """Of its last change, in the order of all changes."""
        self.reasons: Counter[str] | None = None
        """Rejections by reason."""
        self.recent_reasons: tuple[Counter[str], Counter[str]] | None = None
        """Of this period and of the one before."""

    def advance(self, period: int) -> None:
        """Begin a period, if it has not begun yet."""
        if period <= self.period:
            return
        follows, width = period == self.period + 1, len(self.current)
        closed = [self.previous] if follows else [self.previous, self.current]
        self.past = _sum_of(self.past, *closed) if any(closed) else self.past
        self.previous = self.current if follows else None
        if self.recent_reasons is not None:
            self.recent_reasons = (Counter(), self.recent_reasons[0] if follows else Counter())
        self.current = array("d", bytes(8 * width))
        self.period = period

    @property
    def total(self) -> array[float]:
        """The counts since the start."""
        return _sum_of(self.past, self.previous, self.current)

    def reject(self, reason: Reason) -> None:
        """Count a rejection by its reason."""
        if self.reasons is None or self.recent_reasons is None:
            self.reasons, self.recent_reasons = Counter(), (Counter(), Counter())
        self.reasons[reason.value] += 1
        self.recent_reasons[0][reason.value] += 1

    def recent(self, period: int) -> list[float]:
        """Return the counts of `period` and of the one before it."""
        if self.period == period:
            return _sum_of(self.previous, self.current).tolist()
        return self.current.tolist() if self.period == period - 1 else [0.0] * len(self.current)

    def rejected_recently(self, period: int) -> dict[str, int]:
        """Return the rejections by reason of `period` and of the one before it."""
        if self.recent_reasons is None or self.period < period - 1:
            return {}
        current, previous = self.recent_reasons
        return dict(current + previous) if self.period == period else dict(current)


class TierTotals(RecentTotals):
    """Counts of one tier and model, with its recent times to first token."""

    __slots__ = ("previous_ttft", "ttft")

    def __init__(self) -> None:
        super().__init__(len(TIER_COLUMNS))
        self.ttft = Histogram(TTFT_BUCKETS)
        self.previous_ttft: Histogram | None = None

    def advance(self, period: int) -> None:
        if period > self.period:
            self.previous_ttft = self.ttft if period == self.period + 1 else None
            self.ttft = Histogram(TTFT_BUCKETS)
        super().advance(period)

    def recent_ttft(self, period: int) -> Histogram:
        """Return the times to first token of `period` and of the one before it."""
        found = Histogram(TTFT_BUCKETS)
        if self.period in (period, period - 1):
            found.add(self.ttft)
        if self.period == period and self.previous_ttft is not None:
            found.add(self.previous_ttft)
        return found


class OutcomeTotals:
    """The totals of one gateway process. Times are Unix times."""

    def __init__(
        self, cost_of: Callable[[Outcome], float], is_known_model: Callable[[str], bool] = lambda _: True
    ) -> None:
        """`cost_of` returns the money that a request cost, in the currency of the prices. A model that is not known
        counts as `other`: a client must not be able to fill the tiers by inventing models.
        """
        self.tenants: OrderedDict[str, RecentTotals] = OrderedDict()
        """By name, the one that changed last at the end; "" for requests without a tenant."""
        self.tiers: dict[tuple[str, str], TierTotals] = {}
        self.pods: OrderedDict[str, RecentTotals] = OrderedDict()
        self._cost_of = cost_of
        self._is_known_model = is_known_model
        self._versions = 0

    def on_outcome(self, outcome: Outcome) -> None:
        """Add the outcome of a request."""
        period = int(outcome.at_s // PERIOD_S)
        self._versions += 1
        tenant = self._tenant(outcome.tenant or "")
        tenant.version = self._versions
        tier = self._tier(outcome.tier, outcome.model)
        if period != tenant.period:
            tenant.advance(period)
        if period != tier.period:
            tier.advance(period)
        cost, reason, ttft_s = self._cost_of(outcome), outcome.reason, outcome.ttft_s
        for totals in (tenant, tier):
            _add_request(totals.current, outcome, cost)
            if reason is not None:
                totals.reject(reason)
        if ttft_s is not None:
            counts, last = tier.current, outcome.attempts[-1] if outcome.attempts else None
            counts[11] += outcome.queue_wait_s
            if last is not None:
                counts[12] += last.actual_ttft_s or 0.0
                counts[13] += last.predicted_ttft_s
            tier.ttft.observe(ttft_s)
        for attempt in outcome.attempts:
            self._add_attempt(attempt, period)

    def _add_attempt(self, attempt: AttemptReceipt, period: int) -> None:
        pod = self._pod(attempt.engine.partition("#")[0])
        if period != pod.period:
            pod.advance(period)
        counts, ttft_s, cached = pod.current, attempt.actual_ttft_s, attempt.actual_cached_input_tokens
        counts[0] += 1
        if attempt.result in POD_FAILURES:
            counts[1] += 1
        if ttft_s is not None:
            counts[2] += 1
            counts[3] += ttft_s
            counts[4] += attempt.predicted_ttft_s
        if cached is not None:
            counts[5] += attempt.predicted_input_tokens
            counts[6] += cached
            counts[7] += attempt.predicted_cached_input_tokens

    def changed_tenants(self, version: int) -> Iterator[tuple[str, RecentTotals]]:
        """Return the tenants that have changed since a version, the last change first."""
        return takewhile(lambda each: each[1].version > version, reversed(self.tenants.items()))

    def _tenant(self, name: str) -> RecentTotals:
        totals = self.tenants.get(name)
        if totals is None:
            name = OTHER if len(self.tenants) >= MAX_TENANTS else name
            totals = self.tenants.setdefault(name, RecentTotals(len(TENANT_COLUMNS)))
        self.tenants.move_to_end(name)
        return totals

    def _tier(self, tier: str, model: str) -> TierTotals:
        totals = self.tiers.get((tier, model))
        if totals is None:
            key = (tier, model if self._is_known_model(model) else OTHER)
            if key not in self.tiers and len(self.tiers) >= MAX_TIERS:
                key = (OTHER, OTHER)
            totals = self.tiers.setdefault(key, TierTotals())
        return totals

    def _pod(self, url: str) -> RecentTotals:
        totals = self.pods.get(url)
        if totals is None:
            while len(self.pods) >= MAX_PODS:
                self.pods.popitem(last=False)
            totals = self.pods[url] = RecentTotals(len(POD_COLUMNS))
        self.pods.move_to_end(url)
        return totals


def _add_request(counts: array[float], outcome: Outcome, cost: float) -> None:
    """Add to the counts of `TENANT_COLUMNS`."""
    usage, met, ttft_s = outcome.usage, outcome.slo_met, outcome.ttft_s
    counts[0] += 1
    counts[1] += outcome.reason is not None
    counts[2] += outcome.status >= 500
    if met is not None:
        counts[3] += 1
        counts[4] += met
    if usage is not None:
        counts[5] += usage.prompt_tokens
        counts[6] += usage.cached_tokens or 0
        counts[7] += usage.completion_tokens
        counts[8] += cost
    if ttft_s is not None:
        counts[9] += 1
        counts[10] += ttft_s


def _sum_of(*counts: array[float] | None) -> array[float]:
    there = [each for each in counts if each is not None]
    return array("d", map(sum, zip(*there, strict=True)))
