"""Totals of requests for the operators' page: by tenant, by tier and model, and by pod, since the start and recent.

Metrics name few tenants, because each is a series; these totals name all of them. They hold numbers and names only.
They are fed by the sums of `RequestCounters`, only where there is an admin port.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

from gateway.observe.metrics.latency import TTFT_BUCKETS
from gateway.observe.metrics.request_groups import AttemptSums, RequestGroup
from gateway.pipeline.attempt import AttemptStatus
from gateway.runtime.metric_families import OTHER, Histogram
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

    def reject(self, reason: Reason, count: int) -> None:
        """Count rejections by their reason."""
        if self.reasons is None or self.recent_reasons is None:
            self.reasons, self.recent_reasons = Counter(), (Counter(), Counter())
        self.reasons[reason.value] += count
        self.recent_reasons[0][reason.value] += count

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
        self, cost_of: Callable[[RequestGroup], float], is_known_model: Callable[[str], bool] = lambda _: True
    ) -> None:
        """`cost_of` returns the money that requests cost, in the currency of the prices. A model that is not known
        counts as `other`: a client must not be able to fill the tiers by inventing models.
        """
        self.tenants: OrderedDict[str, RecentTotals] = OrderedDict()
        """By name, the one that changed last at the end; "" for requests without a tenant."""
        self.tiers: dict[tuple[str, str], TierTotals] = {}
        self.pods: OrderedDict[str, RecentTotals] = OrderedDict()
        self._cost_of = cost_of
        self._is_known_model = is_known_model
        self._versions = 0
        self._period = 0

    def add(self, group: RequestGroup) -> None:
        """Add requests of one period."""
        self._period = period = int(group.at_s // PERIOD_S)
        self._versions += 1
        tenant = self._tenant(group.tenant or "")
        tenant.version = self._versions
        tier = self._tier(group.tier, group.model)
        counts = _counts_of(group, self._cost_of(group))
        for totals in (tenant, tier):
            totals.advance(period)
            _add(totals.current, counts)
            if group.reason is not None:
                totals.reject(group.reason, group.requests)
        tier.ttft.add(group.ttft)

    def add_attempts(self, sums: AttemptSums) -> None:
        """Add attempts of the period of the requests that were added last."""
        pod = self._pod(sums.engine.partition("#")[0])
        pod.advance(self._period)
        failed = sums.attempts if sums.result in POD_FAILURES else 0
        _add(
            pod.current,
            (
                *(sums.attempts, failed, sums.first_tokens, sums.ttft_s, sums.predicted_ttft_s, sums.input_tokens),
                *(sums.actual_cached_tokens, sums.predicted_cached_tokens),
            ),
        )

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


def _counts_of(group: RequestGroup, cost: float) -> tuple[float, ...]:
    """Return the counts of `TIER_COLUMNS`, which begin with those of `TENANT_COLUMNS`."""
    requests = group.requests
    return (
        requests,
        requests if group.reason is not None else 0,
        requests if group.status >= 500 else 0,
        requests if group.slo_met is not None else 0,
        requests if group.slo_met else 0,
        *(group.input_tokens, group.cached_tokens, group.output_tokens, cost, group.first_tokens, group.ttft_s),
        *(group.queue_wait_s, group.engine_ttft_s, group.predicted_ttft_s),
    )


def _add(counts: array[float], added: Sequence[float]) -> None:
    """Add to the counts of the first columns of `added`."""
    for at in range(len(counts)):
        counts[at] += added[at]


def _sum_of(*counts: array[float] | None) -> array[float]:
    there = [each for each in counts if each is not None]
    return array("d", map(sum, zip(*there, strict=True)))
