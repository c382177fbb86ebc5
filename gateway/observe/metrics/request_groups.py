"""Sums over requests that are alike: same tenant, tier, model, pool and result. What is counted of a request, once.

All counters are fed by groups, when they are read: a request costs one set of additions, however many counters there
are. A request that is not like others, with several attempts for instance, is a group by itself and has its record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from gateway.config.models import ModelEntry
from gateway.observe.metrics.latency import TTFT_BUCKETS, LatencyHistograms
from gateway.observe.pricing import TokenCost, costs_by_model, token_cost
from gateway.pipeline.record import Outcome
from gateway.runtime.metric_families import Histogram
from routing.decision.placement import AttemptReceipt
from routing.rejection import Reason


class RequestGroup:
    """Requests that are alike. `model` is the name that was sent upstream, `pool` a label value."""

    __slots__ = (
        *("answered", "at_s", "cached_tokens", "engine_ttft_s", "first_tokens", "input_tokens", "latency", "model"),
        *("outcome", "output_tokens", "pool", "predicted_ttft_s", "queue_wait_s", "reason", "requests", "slo_met"),
        *("status", "tenant", "tier", "ttft", "ttft_s", "uncached_tokens"),
    )

    def __init__(self, outcome: Outcome, pool: str, latency: LatencyHistograms, *, is_single: bool = False) -> None:
        """`latency`: to which the times of each request are added at once. `is_single`: nothing else is added."""
        self.tenant: str | None = outcome.tenant
        self.tier: str = outcome.tier
        self.model: str = outcome.model
        self.pool = pool
        self.status: int = outcome.status
        self.reason: Reason | None = outcome.reason
        self.slo_met: bool | None = outcome.slo_met
        self.latency = latency
        self.outcome = outcome if is_single else None
        """The record of a single request."""
        self.at_s = 0.0
        """When the last of them ended (Unix time)."""
        self.requests = 0
        self.answered = 0
        """Requests with usage; tokens are of these."""
        self.input_tokens = 0
        self.cached_tokens = 0
        self.uncached_tokens = 0
        """Input tokens less cached ones, at least 0 for each request."""
        self.output_tokens = 0
        self.first_tokens = 0
        """Requests with a first token; the next four add up over these."""
        self.ttft_s = 0.0
        self.queue_wait_s = 0.0
        self.engine_ttft_s = 0.0
        """Of the attempt that answered, as `predicted_ttft_s`."""
        self.predicted_ttft_s = 0.0
        self.ttft = Histogram(TTFT_BUCKETS)

    def add(self, outcome: Outcome, last: AttemptReceipt | None) -> None:
        """Add a request; `last` is its last attempt."""
        self.requests += 1
        self.at_s = outcome.at_s
        latency, usage, ttft_s, wait_s = self.latency, outcome.usage, outcome.ttft_s, outcome.queue_wait_s
        latency.duration_s.observe(outcome.duration_s)
        latency.queue_wait_s.observe(wait_s)
        if ttft_s is not None:
            self.first_tokens += 1
            self.ttft_s += ttft_s
            self.queue_wait_s += wait_s
            self.ttft.counts[bisect_left(TTFT_BUCKETS, ttft_s)] += 1
            if last is not None:
                self.engine_ttft_s += last.actual_ttft_s or 0.0
                self.predicted_ttft_s += last.predicted_ttft_s
        if usage is None:
            return
        input_tokens, cached, output_tokens = usage.prompt_tokens, usage.cached_tokens or 0, usage.completion_tokens
        self.answered += 1
        self.input_tokens += input_tokens
        self.cached_tokens += cached
        self.uncached_tokens += input_tokens - cached if input_tokens > cached else 0
        self.output_tokens += output_tokens
        if outcome.decode_s is not None and outcome.stream and output_tokens > 1:
            latency.tpot_s.observe(outcome.decode_s / (output_tokens - 1))

    def close(self) -> None:
        """Add the first tokens to the latency histograms; nothing is added to the group any more."""
        self.ttft.total = self.ttft_s
        if self.first_tokens:
            self.latency.ttft_s.add(self.ttft)

    def costs(self, prices: Mapping[str, ModelEntry]) -> Iterator[tuple[str, TokenCost]]:
        """Yield each priced model that the requests are charged for, with its cost."""
        if self.outcome is not None and self.outcome.cascade is not None:
            yield from costs_by_model(self.outcome, prices)
        elif self.answered and (entry := prices.get(self.model)) is not None:
            input_tokens = self.uncached_tokens + self.cached_tokens
            cost = token_cost(entry, input_tokens, self.cached_tokens, self.output_tokens)
            if cost is not None:
                yield self.model, cost


class AttemptSums:
    """Attempts at one engine that are alike: of requests of one model (a label value), with one kind and result."""

    __slots__ = (
        *("actual_cached_tokens", "attempts", "checked", "engine", "error_tokens", "first_tokens", "input_tokens"),
        *("is_last", "kind", "model", "predicted_cached_tokens", "predicted_ttft_s", "result", "ttft_error_s"),
        "ttft_s",
    )

    def __init__(self, attempt: AttemptReceipt, model: str, ttft_error_s: Histogram, *, is_last: bool = True) -> None:
        """`ttft_error_s` is added to at once. `is_last`: whether no attempt of the same request followed."""
        self.engine: str = attempt.engine
        self.kind: str = attempt.kind
        self.result: str = attempt.result
        self.model = model
        self.is_last = is_last
        self.ttft_error_s = ttft_error_s
        self.attempts = 0
        self.first_tokens = 0
        """Attempts with a first token; the next two add up over these."""
        self.ttft_s = 0.0
        self.predicted_ttft_s = 0.0
        self.checked = 0
        """Attempts whose engine reported cached tokens; the next four add up over these."""
        self.input_tokens = 0
        self.actual_cached_tokens = 0
        self.predicted_cached_tokens = 0
        self.error_tokens = 0

    def add(self, attempt: AttemptReceipt) -> None:
        """Add an attempt."""
        self.attempts += 1
        ttft_s, predicted_ttft_s, cached = (
            attempt.actual_ttft_s,
            attempt.predicted_ttft_s,
            attempt.actual_cached_input_tokens,
        )
        if ttft_s is not None:
            self.first_tokens += 1
            self.ttft_s += ttft_s
            self.predicted_ttft_s += predicted_ttft_s
        if cached is None:
            return
        predicted = attempt.predicted_cached_input_tokens
        self.checked += 1
        self.input_tokens += attempt.predicted_input_tokens
        self.actual_cached_tokens += cached
        self.predicted_cached_tokens += predicted
        self.error_tokens += abs(predicted - cached)
        if ttft_s is not None and self.is_last:
            self.ttft_error_s.observe(abs(predicted_ttft_s - ttft_s))


def is_alike(outcome: Outcome) -> bool:
    """Return whether a request is one of those that are counted in groups: at most one attempt, and nothing special."""
    attempts = outcome.attempts
    if attempts:
        attempt = attempts[0]
        if len(attempts) > 1 or attempt.prefill_engine is not None or attempt.fallback_reason is not None:
            return False
    return (
        outcome.cascade is None
        and outcome.coalesced_with is None
        and outcome.resume_failure is None
        and not outcome.resumes
    )


def single_group(outcome: Outcome, pool: str = "", latency: LatencyHistograms | None = None) -> RequestGroup:
    """Return one request as a group by itself."""
    group = RequestGroup(outcome, pool, latency or LatencyHistograms(), is_single=True)
    group.add(outcome, outcome.attempts[-1] if outcome.attempts else None)
    group.close()
    return group


def single_attempts(outcome: Outcome, model: str, ttft_error_s: Histogram) -> Iterator[AttemptSums]:
    """Yield each attempt of a request by itself."""
    for left, attempt in zip(reversed(range(len(outcome.attempts))), outcome.attempts, strict=True):
        sums = AttemptSums(attempt, model, ttft_error_s, is_last=left == 0)
        sums.add(attempt)
        yield sums
