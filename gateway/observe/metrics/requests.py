"""Counters of requests by model, and of retries; passes each outcome on to the counters by tier, tenant, pool and pod.

Plain numbers: a client library's locks and label look-ups would cost more than routing the request. Label values are
bounded: models that no pod serves are `other`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from gateway.config.models import ModelEntry
from gateway.observe.metrics.latency import TTFT_BUCKETS, LatencyCounters
from gateway.observe.metrics.pools import PoolNames, PoolTokens
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
    """All request counters of one gateway. Outcomes are counted in batches, or when the counters are read."""

    def __init__(
        self,
        is_known: Callable[[str], bool],
        fleet: Fleet,
        *,
        tenants: TenantLabels | None = None,
        prices: Mapping[str, ModelEntry] | None = None,
        judge: Callable[[AttemptReceipt], None] = lambda _: None,
        also: Sequence[OutcomeObserver] = (),
        max_models: int = 200,
    ) -> None:
        """`prices`: `model_list` by name, also after reloads. `judge` is called with the last attempt of every request,
        `also` with every outcome: in the same batches.
        """
        self._models: dict[str, ModelCounters] = {}
        tenants = tenants or TenantLabels()
        self._pools = PoolNames(fleet)
        self._latency = LatencyCounters()
        self._tenants = TenantTotals(tenants, {} if prices is None else prices)
        self._pool_tokens = PoolTokens(self._pools, tenants)
        self._upstreams = UpstreamCounters(fleet)
        self._fresh: list[Outcome] = []
        self.early: Counter[Reason] = Counter()
        """Rejections before a request was read: bad JSON, no key, too large."""
        self._is_known = is_known
        self._judge = judge
        self._also = also
        self._max_models = max_models

    def observe_batches(self, observer: OutcomeObserver) -> None:
        """Call `observer` with every outcome from now on, in the same batches."""
        self._also = (*self._also, observer)

    def on_outcome(self, outcome: Outcome) -> None:
        """Add the outcome of a request."""
        self._fresh.append(outcome)
        if len(self._fresh) == BATCH_SIZE:
            self.count_fresh()

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
        """Count the outcomes that have been added since the last batch."""
        for outcome in self._fresh:
            name, attempts = self._label(outcome.model), outcome.attempts
            pool = self._pools.of(attempts, name)
            self._count(self._models[name], outcome)
            self._latency.count(outcome, name, pool)
            self._tenants.count(outcome)
            self._pool_tokens.count(outcome, pool)
            if attempts:
                self._upstreams.count(attempts)
                self._judge(attempts[-1])
            for observe in self._also:
                observe(outcome)
        self._fresh.clear()

    @staticmethod
    def _count(tally: ModelCounters, outcome: Outcome) -> None:
        tally.requests[outcome.status, outcome.reason.value if outcome.reason else ""] += 1
        if outcome.coalesced_with is not None:
            tally.coalesced_responses += 1
        if outcome.resumes or outcome.resume_failure:
            tally.resumed += outcome.resumes
            tally.wasted_tokens += outcome.wasted_tokens
        if outcome.resume_failure is not None:
            tally.resume_failure[outcome.resume_failure] += 1
        usage, attempts = outcome.usage, outcome.attempts
        if usage is not None:
            tally.prompt_tokens += usage.prompt_tokens
            tally.output_tokens += usage.completion_tokens
            tally.cached_tokens += usage.cached_tokens or 0
        for attempt in attempts:
            tally.attempts[attempt.kind, attempt.result] += 1
        if attempts and (last := attempts[-1]).actual_cached_input_tokens is not None:
            tally.predicted_requests += 1
            tally.predicted_cached_tokens += last.predicted_cached_input_tokens
            tally.actual_cached_tokens += last.actual_cached_input_tokens
            tally.prediction_error_tokens += abs(last.predicted_cached_input_tokens - last.actual_cached_input_tokens)
            if last.actual_ttft_s is not None:
                tally.ttft_error_s.observe(abs(last.predicted_ttft_s - last.actual_ttft_s))

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
                "Tokens computed again for that.",
                lambda tally: tally.wasted_tokens,
            ),
            (
                "hearth_prediction_samples",
                "Requests whose predicted cached tokens could be checked.",
                lambda tally: tally.predicted_requests,
            ),
            (
                "hearth_predicted_cached_tokens",
                "Cached tokens predicted for them.",
                lambda tally: tally.predicted_cached_tokens,
            ),
            (
                "hearth_actual_cached_tokens",
                "Cached tokens that their engines reported.",
                lambda tally: tally.actual_cached_tokens,
            ),
            (
                "hearth_cached_tokens_prediction_error",
                "Sum of the absolute differences.",
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
            "hearth_retry_budget_exhausted", "Attempts that the retry budget did not allow.", labels=("kind",)
        )
        for kind in RetryKind:
            exhausted.add_metric((kind.value,), budget.rejected[kind])
        yield exhausted
        yield GaugeMetricFamily(
            "hearth_retry_budget_balance", "Further attempts that are possible at once.", budget.balance
        )
        stalls = CounterMetricFamily("hearth_stalls", "Engines and streams found stalled.", labels=("kind",))
        for verdict in StallVerdict:
            stalls.add_metric((verdict.name.lower(),), self._silences.get(verdict, 0))
        yield stalls
