"""Counters of requests by model and tenant, and of retries.

Plain numbers: a client library's locks and label look-ups would cost more than routing the request. Label values are
bounded: models that no pod serves, and tenants beyond a cap, are `other`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from gateway.pipeline.record import Outcome
from gateway.runtime.metric_families import OTHER, Family, Histogram, cumulative_buckets
from routing.decision.receipt import AttemptReceipt
from routing.rejection import Reason
from routing.retries import AttemptKind, RetryBudget
from routing.stall_detection import StallVerdict

OutcomeObserver = Callable[[Outcome], None]

BATCH_SIZE = 64
"""Batch size: counting one by one, each between two requests, takes twice as long."""

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
"""vLLM's buckets, so that both fit in one panel; also the next two."""

TPOT_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)

DURATION_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)


@dataclass(slots=True)
class ModelCounters:
    """Counters of one model."""

    requests: Counter[tuple[int, str]] = field(default_factory=Counter)
    """By status and rejection reason ('' if none)."""
    retries: Counter[str] = field(default_factory=Counter)
    """Attempts that were followed by another, by how they ended."""
    ttft_s: Histogram = field(default_factory=lambda: Histogram(TTFT_BUCKETS))
    tpot_s: Histogram = field(default_factory=lambda: Histogram(TPOT_BUCKETS))
    duration_s: Histogram = field(default_factory=lambda: Histogram(DURATION_BUCKETS))
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
    """Requests whose engine reported cached tokens: the next five are about these only."""
    predicted_cached_tokens: int = 0
    actual_cached_tokens: int = 0
    prediction_error_tokens: int = 0
    """Sum of absolute differences: errors in both directions must not cancel."""
    predicted_ttft_s: float = 0.0
    actual_ttft_s: float = 0.0


@dataclass(slots=True)
class TenantCounters:
    """Counters of one tenant."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class RequestCounters(Collector):
    """All request counters of one gateway. Outcomes are counted in batches, or when the counters are read."""

    def __init__(
        self,
        is_known: Callable[[str], bool],
        *,
        judge: Callable[[AttemptReceipt], None] = lambda _: None,
        also: Sequence[OutcomeObserver] = (),
        most_models: int = 200,
        most_tenants: int = 100,
    ) -> None:
        """`judge` is called with the last attempt of every request, `also` with every outcome: in the same batches."""
        self._models: dict[str, ModelCounters] = {}
        self._tenants: dict[str, TenantCounters] = {}
        self._fresh: list[Outcome] = []
        self.early: Counter[Reason] = Counter()
        """Rejections before a request was read: bad JSON, no key, too large."""
        self._is_known = is_known
        self._judge = judge
        self._also = also
        self._most_models = most_models
        self._most_tenants = most_tenants

    def on_outcome(self, outcome: Outcome) -> None:
        """Add the outcome of a request."""
        self._fresh.append(outcome)
        if len(self._fresh) == BATCH_SIZE:
            self._count_fresh()

    @property
    def models(self) -> dict[str, ModelCounters]:
        self._count_fresh()
        return self._models

    @property
    def tenants(self) -> dict[str, TenantCounters]:
        self._count_fresh()
        return self._tenants

    def count_rejection(self, reason: Reason) -> None:
        """Count a rejection before a request was read."""
        self.early[reason] += 1

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        yield from self._requests()
        yield self._unresumed()
        yield from self._model_histograms()
        yield from self._model_counters()
        yield from self._tenant_counters()

    def _count_fresh(self) -> None:
        for outcome in self._fresh:
            self._count(self._model(outcome.model), outcome)
            if outcome.tenant is not None:
                self._count_tenant(self._tenant(outcome.tenant), outcome)
            if outcome.attempts:
                self._judge(outcome.attempts[-1])
            for observe in self._also:
                observe(outcome)
        self._fresh.clear()

    @staticmethod
    def _count(tally: ModelCounters, outcome: Outcome) -> None:
        tally.requests[outcome.status, outcome.reason.value if outcome.reason else ""] += 1
        tally.duration_s.observe(outcome.duration_s)
        if outcome.coalesced_with is not None:
            tally.coalesced_responses += 1
        if outcome.resumes or outcome.resume_failure:
            tally.resumed += outcome.resumes
            tally.wasted_tokens += outcome.wasted_tokens
        if outcome.resume_failure is not None:
            tally.resume_failure[outcome.resume_failure] += 1
        if outcome.ttft_s is not None:
            tally.ttft_s.observe(outcome.ttft_s)
        usage, attempts = outcome.usage, outcome.attempts
        if usage is not None:
            tally.prompt_tokens += usage.prompt_tokens
            tally.output_tokens += usage.completion_tokens
            tally.cached_tokens += usage.cached_tokens or 0
            if outcome.decode_s is not None and outcome.stream and usage.completion_tokens > 1:
                tally.tpot_s.observe(outcome.decode_s / (usage.completion_tokens - 1))
        for attempt in attempts[:-1]:
            tally.retries[attempt.result] += 1
        if attempts and (last := attempts[-1]).actual_cached_input_tokens is not None:
            tally.predicted_requests += 1
            tally.predicted_cached_tokens += last.predicted_cached_input_tokens
            tally.actual_cached_tokens += last.actual_cached_input_tokens
            tally.prediction_error_tokens += abs(last.predicted_cached_input_tokens - last.actual_cached_input_tokens)
            if last.actual_ttft_s is not None:
                tally.predicted_ttft_s += last.predicted_ttft_s
                tally.actual_ttft_s += last.actual_ttft_s

    @staticmethod
    def _count_tenant(tally: TenantCounters, outcome: Outcome) -> None:
        tally.requests += 1
        if (usage := outcome.usage) is not None:
            tally.prompt_tokens += usage.prompt_tokens
            tally.cached_tokens += usage.cached_tokens or 0
            tally.output_tokens += usage.completion_tokens

    def _model(self, name: str) -> ModelCounters:
        tally = self._models.get(name)
        if tally is None:
            # A client must not be able to make series by inventing models.
            if len(self._models) >= self._most_models or not self._is_known(name):
                name = OTHER
            tally = self._models.setdefault(name, ModelCounters())
        return tally

    def _tenant(self, name: str) -> TenantCounters:
        tally = self._tenants.get(name)
        if tally is None:
            if len(self._tenants) >= self._most_tenants:
                name = OTHER
            tally = self._tenants.setdefault(name, TenantCounters())
        return tally

    def _requests(self) -> Iterator[Family]:
        models = self.models
        requests = CounterMetricFamily(
            "hearth_requests", "Requests that have ended.", labels=("model_name", "status", "reason")
        )
        retries = CounterMetricFamily(
            "hearth_retries",
            "Attempts after which another pod was tried, by how they ended.",
            labels=("model_name", "ended"),
        )
        refusals: dict[str, int] = {reason.value: count for reason, count in self.early.items()}
        for name, tally in models.items():
            for (status, reason), count in tally.requests.items():
                requests.add_metric((name, str(status), reason), count)
                if reason:
                    refusals[reason] = refusals.get(reason, 0) + count
            for ended, count in tally.retries.items():
                retries.add_metric((name, ended), count)
        yield requests
        yield retries
        refused = CounterMetricFamily(
            "hearth_refusals", "Requests refused by the gateway, those at the door included.", labels=("reason",)
        )
        for reason, count in refusals.items():
            refused.add_metric((reason,), count)
        yield refused

    def _unresumed(self) -> Family:
        family = CounterMetricFamily(
            "hearth_unresumed", "Streams that were cut and that nobody went on with.", labels=("model_name", "why")
        )
        for name, tally in self.models.items():
            for why, count in tally.resume_failure.items():
                family.add_metric((name, why), count)
        return family

    def _model_histograms(self) -> Iterator[Family]:
        shown: tuple[tuple[str, str, Callable[[ModelCounters], Histogram]], ...] = (
            ("hearth_time_to_first_token_seconds", "From arrival to first token.", lambda tally: tally.ttft_s),
            ("hearth_time_per_output_token_seconds", "Mean per stream, after its first.", lambda tally: tally.tpot_s),
            ("hearth_request_duration_seconds", "From arrival to end.", lambda tally: tally.duration_s),
        )
        for name, words, histogram_of in shown:
            family = HistogramMetricFamily(name, words, labels=("model_name",))
            for model, tally in self.models.items():
                histogram = histogram_of(tally)
                family.add_metric((model,), cumulative_buckets(histogram), histogram.total)
            yield family

    def _model_counters(self) -> Iterator[Family]:
        shown: tuple[tuple[str, str, Callable[[ModelCounters], float]], ...] = (
            ("hearth_prompt_tokens", "Prompt tokens, by the engines' count.", lambda tally: tally.prompt_tokens),
            ("hearth_cached_tokens", "Prompt tokens that engines reused.", lambda tally: tally.cached_tokens),
            ("hearth_generation_tokens", "Tokens generated.", lambda tally: tally.output_tokens),
            (
                "hearth_shared_answers",
                "Requests given another's answer as well.",
                lambda tally: tally.coalesced_responses,
            ),
            ("hearth_resumed", "Streams whose pod was lost, gone on with by another.", lambda tally: tally.resumed),
            ("hearth_resume_wasted_tokens", "Computed again for that.", lambda tally: tally.wasted_tokens),
            (
                "hearth_judged_requests",
                "Requests whose prediction could be checked.",
                lambda tally: tally.predicted_requests,
            ),
            (
                "hearth_predicted_warm_tokens",
                "Warm tokens predicted for them.",
                lambda tally: tally.predicted_cached_tokens,
            ),
            ("hearth_real_warm_tokens", "Warm tokens their engines told.", lambda tally: tally.actual_cached_tokens),
            ("hearth_missed_warm_tokens", "Sum of their differences.", lambda tally: tally.prediction_error_tokens),
            ("hearth_predicted_ttft_seconds", "Engine TTFT predicted for them.", lambda tally: tally.predicted_ttft_s),
            ("hearth_real_ttft_seconds", "Engine TTFT they really had.", lambda tally: tally.actual_ttft_s),
        )
        for name, words, value_of in shown:
            family = CounterMetricFamily(name, words, labels=("model_name",))
            for model, tally in self.models.items():
                family.add_metric((model,), value_of(tally))
            yield family

    def _tenant_counters(self) -> Iterator[Family]:
        requests = CounterMetricFamily("hearth_tenant_requests", "Requests by tenant.", labels=("tenant",))
        tokens = CounterMetricFamily("hearth_tenant_tokens", "Tokens by tenant and kind.", labels=("tenant", "kind"))
        for name, tally in self.tenants.items():
            requests.add_metric((name,), tally.requests)
            tokens.add_metric((name, "prompt"), tally.prompt_tokens)
            tokens.add_metric((name, "cached"), tally.cached_tokens)
            tokens.add_metric((name, "generation"), tally.output_tokens)
        yield requests
        yield tokens


class RetryCollector(Collector):
    """Shows second attempts, the retry budget and stalls."""

    def __init__(self, budget: RetryBudget, silences: Mapping[StallVerdict, int]) -> None:
        """`silences`: how often each kind of stall was detected."""
        self._budget = budget
        self._silences = silences

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        budget = self._budget
        for name, words, counts in (
            ("hearth_second_attempts", "Attempts beyond a request's first, by what for.", budget.taken),
            ("hearth_second_attempts_refused", "Those that the retry budget did not allow.", budget.rejected),
        ):
            family = CounterMetricFamily(name, words, labels=("why",))
            for what in AttemptKind:
                family.add_metric((what.value,), counts[what])
            yield family
        yield GaugeMetricFamily("hearth_retry_budget", "Second attempts that may still come at once.", budget.balance)
        silent = CounterMetricFamily(
            "hearth_stalls", "What fell silent for too long, by what it was.", labels=("what",)
        )
        for late in StallVerdict:
            silent.add_metric((late.name.lower(),), self._silences.get(late, 0))
        yield silent
