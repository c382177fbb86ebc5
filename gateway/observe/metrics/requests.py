"""Counters of requests by model, and of retries; passes sums on to the counters by tier, tenant, pool and pod.

Plain numbers: a client library's locks and label look-ups would cost more than routing the request. Label values are
bounded: models that no pod serves are `other`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from gateway.config.models import ModelEntry
from gateway.observe.metrics.latency import TTFT_BUCKETS, LatencyCounters
from gateway.observe.metrics.pools import PoolNames, PoolTokens
from gateway.observe.metrics.request_groups import (
    AttemptSums,
    RequestGroup,
    is_alike,
    single_attempts,
    single_group,
)
from gateway.observe.metrics.tenants import TenantTotals
from gateway.observe.metrics.upstreams import UpstreamCounters
from gateway.pipeline.record import Outcome
from gateway.runtime.metric_families import OTHER, Family, Histogram, TenantLabels, cumulative_buckets
from routing.decision.placement import AttemptReceipt
from routing.fleet import Fleet
from routing.rejection import Reason
from routing.retries import RetryBudget, RetryKind
from routing.stall_detection import StallVerdict

OutcomeObserver = Callable[[Outcome], None]

BATCH_SIZE = 64
"""Batch size: counting one by one, each between two requests, takes twice as long."""

MAX_GROUPS = 1024
"""Groups of requests that are alike, each of half a kilobyte; beyond it the oldest are counted and removed."""

GroupKey = tuple[str | None, str, str, str, int, Reason | None, bool | None]
"""Tenant, tier, model, pool, status, reason, and whether the objective was met."""

AttemptKey = tuple[str, str, str, str]
"""Engine, model, result and kind."""


@dataclass(slots=True)
class ModelCounters:
    """Counters of one model."""

    requests: Counter[tuple[int, str]] = field(default_factory=Counter)
    """By status and rejection reason ('' if none)."""
    attempts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By kind and result."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    coalesced_responses: int = 0
    """Requests that shared the response of another."""
    resumed: int = 0
    """How often a stream was resumed on another pod."""
    resume_failure: Counter[str] = field(default_factory=Counter)
    """Streams that were cut and not resumed, by reason."""
    wasted_tokens: int = 0
    """Tokens computed again to resume streams."""
    predicted_requests: int = 0
    """Requests whose engine reported cached tokens: the next four are about these only."""
    predicted_cached_tokens: int = 0
    actual_cached_tokens: int = 0
    prediction_error_tokens: int = 0
    """Sum of absolute differences: errors in both directions must not cancel."""
    ttft_error_s: Histogram = field(default_factory=lambda: Histogram(TTFT_BUCKETS))
    """Absolute differences of predicted and actual engine TTFT."""


class RequestCounters(Collector):
    """All request counters of one gateway. Outcomes are added up in batches, and counted when the counters are read."""

    def __init__(
        self,
        is_known: Callable[[str], bool],
        fleet: Fleet,
        *,
        tenants: TenantLabels | None = None,
        prices: Mapping[str, ModelEntry] | None = None,
        judge: Callable[[AttemptReceipt], None] = lambda _: None,
        special: Sequence[OutcomeObserver] = (),
        groups: Sequence[Callable[[RequestGroup], None]] = (),
        attempts: Sequence[Callable[[AttemptSums], None]] = (),
        period_s: float = inf,
        max_models: int = 200,
    ) -> None:
        """`prices`: `model_list` by name, also after reloads. `judge` is called with the last attempt of every request,
        `special` with requests that are not like others (`is_alike`), `groups` and `attempts` with sums. No sum
        includes requests of two periods of `period_s`.
        """
        self._models: dict[str, ModelCounters] = {}
        tenants = tenants or TenantLabels()
        self._pools = PoolNames(fleet)
        self._latency = LatencyCounters()
        self._tenants = TenantTotals(tenants, {} if prices is None else prices)
        self._pool_tokens = PoolTokens(self._pools, tenants)
        self._upstreams = UpstreamCounters(fleet)
        self._fresh: list[Outcome] = []
        self._groups: dict[GroupKey, RequestGroup] = {}
        self._attempts: dict[AttemptKey, AttemptSums] = {}
        self._add_group = (self._count, self._tenants.add, self._pool_tokens.add, *groups)
        self._add_attempts = (self._count_attempts, self._upstreams.add, *attempts)
        self._period_s, self._period_end_s = period_s, 0.0 if period_s < inf else inf
        self.early: Counter[Reason] = Counter()
        """Rejections before a request was read: bad JSON, no key, too large."""
        self._is_known = is_known
        self._judge = judge
        self._special = special
        self._observers: tuple[OutcomeObserver, ...] = ()
        self._max_models = max_models

    def observe_batches(self, observer: OutcomeObserver) -> None:
        """Call `observer` with every outcome from now on, in the same batches."""
        self._observers = (*self._observers, observer)

    def on_outcome(self, outcome: Outcome) -> None:
        """Add the outcome of a request."""
        self._fresh.append(outcome)
        if len(self._fresh) == BATCH_SIZE:
            self._group_fresh()

    @property
    def models(self) -> dict[str, ModelCounters]:
        self.count_fresh()
        return self._models

    @property
    def latency(self) -> LatencyCounters:
        self.count_fresh()
        return self._latency

    @property
    def tenants(self) -> TenantTotals:
        self.count_fresh()
        return self._tenants

    @property
    def pool_tokens(self) -> PoolTokens:
        self.count_fresh()
        return self._pool_tokens

    def count_rejection(self, reason: Reason) -> None:
        """Count a rejection before a request was read."""
        self.early[reason] += 1

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        yield from self._requests()
        yield self._unresumed()
        yield from self._latency.families()
        yield self._prediction_error()
        yield from self._model_counters()
        yield from self._tenants.families()
        yield self._pool_tokens.family()
        yield from self._upstreams.families()

    def count_fresh(self) -> None:
        """Count all outcomes that have been added."""
        self._group_fresh()
        self._count_groups(0)

    def _group_fresh(self) -> None:
        """Add the outcomes since the last batch to their groups."""
        fresh, self._fresh = self._fresh, []
        models, groups, sums, judge = self._models, self._groups, self._attempts, self._judge
        for outcome in fresh:
            if outcome.at_s >= self._period_end_s:
                self._count_groups(0)
                self._period_end_s = (outcome.at_s // self._period_s + 1) * self._period_s
            model, attempts = outcome.model, outcome.attempts
            name = model if model in models else self._label(model)
            pool = self._pools.of(attempts, name)
            if not is_alike(outcome):
                self._count_special(outcome, name, pool)
                continue
            key = (outcome.tenant, outcome.tier, model, pool, outcome.status, outcome.reason, outcome.slo_met)
            group = groups.get(key)
            if group is None:
                group = groups[key] = RequestGroup(outcome, pool, self._latency.of(name, outcome.tier, pool))
            if not attempts:
                group.add(outcome, None)
                continue
            attempt = attempts[0]
            group.add(outcome, attempt)
            attempt_key = (attempt.engine, name, attempt.result, attempt.kind)
            attempt_sums = sums.get(attempt_key)
            if attempt_sums is None:
                attempt_sums = sums[attempt_key] = AttemptSums(attempt, name, models[name].ttft_error_s)
            attempt_sums.add(attempt)
            judge(attempt)
        if len(groups) > MAX_GROUPS or len(sums) > MAX_GROUPS:
            self._count_groups(MAX_GROUPS)
        for observe in self._observers:
            for outcome in fresh:
                observe(outcome)

    def _count_special(self, outcome: Outcome, name: str, pool: str) -> None:
        """Count a request that is not like others."""
        self._count_group(single_group(outcome, pool, self._latency.of(name, outcome.tier, pool)))
        for sums in single_attempts(outcome, name, self._models[name].ttft_error_s):
            for add in self._add_attempts:
                add(sums)
        if outcome.attempts:
            self._judge(outcome.attempts[-1])
        for observe in self._special:
            observe(outcome)

    def _count_groups(self, left: int) -> None:
        """Count all groups but the last `left`, oldest first: bounded work for each batch, however many there are."""
        groups, sums = self._groups, self._attempts
        for key in [*islice(groups, max(0, len(groups) - left))]:
            group = groups.pop(key)
            group.close()
            self._count_group(group)
        for attempt_key in [*islice(sums, max(0, len(sums) - left))]:
            attempts = sums.pop(attempt_key)
            for add in self._add_attempts:
                add(attempts)

    def _count_group(self, group: RequestGroup) -> None:
        for add in self._add_group:
            add(group)

    def _count(self, group: RequestGroup) -> None:
        tally, outcome = self._models[self._label(group.model)], group.outcome
        tally.requests[group.status, group.reason.value if group.reason else ""] += group.requests
        tally.prompt_tokens += group.input_tokens
        tally.output_tokens += group.output_tokens
        tally.cached_tokens += group.cached_tokens
        if outcome is None:
            return
        if outcome.coalesced_with is not None:
            tally.coalesced_responses += 1
        if outcome.resumes or outcome.resume_failure:
            tally.resumed += outcome.resumes
            tally.wasted_tokens += outcome.wasted_tokens
        if outcome.resume_failure is not None:
            tally.resume_failure[outcome.resume_failure] += 1

    def _count_attempts(self, sums: AttemptSums) -> None:
        tally = self._models[sums.model]
        tally.attempts[sums.kind, sums.result] += sums.attempts
        if sums.is_last:
            tally.predicted_requests += sums.checked
            tally.predicted_cached_tokens += sums.predicted_cached_tokens
            tally.actual_cached_tokens += sums.actual_cached_tokens
            tally.prediction_error_tokens += sums.error_tokens

    def _label(self, name: str) -> str:
        """Return the label value of a model, whose counters exist then."""
        if name in self._models:
            return name
        # A client must not be able to make series by inventing models.
        if len(self._models) >= self._max_models or not self._is_known(name):
            name = OTHER
        self._models.setdefault(name, ModelCounters())
        return name

    def _requests(self) -> Iterator[Family]:
        models = self.models
        requests = CounterMetricFamily(
            "hearth_requests", "Requests that have ended.", labels=("model_name", "status", "reason")
        )
        attempts = CounterMetricFamily(
            "hearth_attempts", "Attempts at engines, by kind and result.", labels=("model_name", "kind", "result")
        )
        rejections: dict[str, int] = {reason.value: count for reason, count in self.early.items()}
        for name, tally in models.items():
            for (status, reason), count in tally.requests.items():
                requests.add_metric((name, str(status), reason), count)
                if reason:
                    rejections[reason] = rejections.get(reason, 0) + count
            for (kind, result), count in tally.attempts.items():
                attempts.add_metric((name, kind, result), count)
        yield requests
        yield attempts
        rejected = CounterMetricFamily(
            "hearth_rejections", "Requests rejected by the gateway, also before they were read.", labels=("reason",)
        )
        for reason, count in rejections.items():
            rejected.add_metric((reason,), count)
        yield rejected

    def _unresumed(self) -> Family:
        family = CounterMetricFamily(
            "hearth_stream_resume_failures",
            "Streams that were cut and not resumed, by cause.",
            labels=("model_name", "reason"),
        )
        for name, tally in self.models.items():
            for reason, count in tally.resume_failure.items():
                family.add_metric((name, reason), count)
        return family

    def _prediction_error(self) -> Family:
        family = HistogramMetricFamily(
            "hearth_ttft_prediction_error_seconds",
            "Absolute error of the predicted engine TTFT.",
            labels=("model_name",),
        )
        for model, tally in self.models.items():
            family.add_metric((model,), cumulative_buckets(tally.ttft_error_s), tally.ttft_error_s.total)
        return family

    def _model_counters(self) -> Iterator[Family]:
        shown: tuple[tuple[str, str, Callable[[ModelCounters], float]], ...] = (
            ("hearth_input_tokens", "Prompt tokens as counted by engines.", lambda tally: tally.prompt_tokens),
            (
                "hearth_cached_input_tokens",
                "Prompt tokens that engines had cached: part of the input tokens.",
                lambda tally: tally.cached_tokens,
            ),
            ("hearth_output_tokens", "Output tokens as counted by engines.", lambda tally: tally.output_tokens),
            (
                "hearth_coalesced_requests",
                "Requests that shared the response of an identical one.",
                lambda tally: tally.coalesced_responses,
            ),
            (
                "hearth_stream_resumes",
                "Times that a cut stream was resumed on another pod.",
                lambda tally: tally.resumed,
            ),
            (
                "hearth_stream_resume_wasted_tokens",
                "Tokens computed twice to resume cut streams.",
                lambda tally: tally.wasted_tokens,
            ),
            (
                "hearth_prediction_samples",
                "Requests whose predicted cached tokens could be compared with the engine's report.",
                lambda tally: tally.predicted_requests,
            ),
            (
                "hearth_predicted_cached_tokens",
                "Cached prompt tokens that routing predicted, of the requests in hearth_prediction_samples_total.",
                lambda tally: tally.predicted_cached_tokens,
            ),
            (
                "hearth_actual_cached_tokens",
                "Cached prompt tokens that engines reported, of the requests in hearth_prediction_samples_total.",
                lambda tally: tally.actual_cached_tokens,
            ),
            (
                "hearth_cached_tokens_prediction_error",
                "Absolute differences of predicted and reported cached tokens, summed.",
                lambda tally: tally.prediction_error_tokens,
            ),
        )
        for name, words, value_of in shown:
            family = CounterMetricFamily(name, words, labels=("model_name",))
            for model, tally in self.models.items():
                family.add_metric((model,), value_of(tally))
            yield family


class RetryCollector(Collector):
    """Shows the retry budget and stalls."""

    def __init__(self, budget: RetryBudget, silences: Mapping[StallVerdict, int]) -> None:
        """`silences`: how often each kind of stall was detected."""
        self._budget = budget
        self._silences = silences

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        budget = self._budget
        exhausted = CounterMetricFamily(
            "hearth_retry_budget_exhausted",
            "Retries, failovers and resumes that the budget did not allow.",
            labels=("kind",),
        )
        for kind in RetryKind:
            exhausted.add_metric((kind.value,), budget.rejected[kind])
        yield exhausted
        yield GaugeMetricFamily(
            "hearth_retry_budget_balance",
            "Retries, failovers and resumes that the budget allows at once.",
            budget.balance,
        )
        stalls = CounterMetricFamily("hearth_stalls", "Engines and streams found stalled.", labels=("kind",))
        for verdict in StallVerdict:
            stalls.add_metric((verdict.name.lower(),), self._silences.get(verdict, 0))
        yield stalls
