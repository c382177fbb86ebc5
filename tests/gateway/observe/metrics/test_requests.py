"""Every outcome is counted once, under bounded names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from gateway.observe.metrics.latency import LatencyHistograms
from gateway.observe.metrics.requests import BATCH_SIZE, RequestCounters, RetryCollector
from gateway.pipeline.attempt import ResumeBlocker
from gateway.runtime.metric_families import OTHER, Histogram, TenantLabels
from routing.fleet import Fleet
from routing.rejection import Reason
from routing.request import Usage
from routing.retries import RetryBudget, RetryKind, RetryTerms
from routing.stall_detection import StallBounds, StallDetector, StallVerdict
from tests.gateway.samples import a_request, an_attempt, an_outcome


def tallies(max_models: int = 200, max_tenants: int = 100) -> RequestCounters:
    return RequestCounters(
        lambda model: model != "invented", Fleet(), tenants=TenantLabels(max_tenants), max_models=max_models
    )


def latency(counts: RequestCounters) -> LatencyHistograms:
    """Of the model `tiny`, whose pods name no pool."""
    return counts.latency.by_key["tiny", "default", "tiny"]


def test_a_request_is_counted() -> None:
    """Status, tokens, times, and how good the prediction was."""
    counts = tallies()
    counts.on_outcome(an_outcome())
    tally = counts.models["tiny"]
    assert tally.requests == {(200, ""): 1}
    assert (tally.prompt_tokens, tally.cached_tokens, tally.output_tokens) == (100, 96, 11)
    held = latency(counts)
    assert (sum(held.ttft_s.counts), sum(held.duration_s.counts), sum(held.queue_wait_s.counts)) == (1, 1, 1)
    assert held.tpot_s.total == pytest.approx(0.1)
    assert (tally.predicted_requests, tally.predicted_cached_tokens, tally.actual_cached_tokens) == (1, 64, 96)
    assert tally.prediction_error_tokens == 32
    assert sum(tally.ttft_error_s.counts) == 1
    assert tally.ttft_error_s.total == pytest.approx(0.05)
    assert tally.attempts == {("first", "ok"): 1}


def test_a_shared_answer_is_counted_as_one() -> None:
    """A request like any other, that took nothing."""
    counts = tallies()
    counts.on_outcome(an_outcome(usage=None, attempts=(), coalesced_with="r-0"))
    counts.on_outcome(an_outcome())
    tally = counts.models["tiny"]
    assert (tally.coalesced_responses, sum(tally.requests.values()), tally.output_tokens) == (1, 2, 11)


def test_streams_that_were_cut_are_counted() -> None:
    """Those that went on and those that did not, by why, with what was computed again for them: not beside them."""
    counts = tallies()
    counts.on_outcome(an_outcome(resumes=2, wasted_tokens=40))
    counts.on_outcome(
        an_outcome(status=502, reason=Reason.POD_LOST, resume_failure=ResumeBlocker.TOOL_CALL, wasted_tokens=5)
    )
    counts.on_outcome(an_outcome(wasted_tokens=300))
    tally = counts.models["tiny"]
    assert (tally.resumed, tally.wasted_tokens, tally.resume_failure) == (2, 45, {"tool_call": 1})


def test_outcomes_are_counted_together_and_whoever_looks_sees_all() -> None:
    """Before a batch is full, when it is, and behind it."""
    counts = tallies()
    for number in range(1, BATCH_SIZE + 6):
        counts.on_outcome(an_outcome())
        if number in {1, BATCH_SIZE, BATCH_SIZE + 5}:
            assert counts.models["tiny"].requests == {(200, ""): number}
            assert counts.tenants.by_tenant["legal"].requests == number


def test_rejections_and_attempts_are_counted() -> None:
    """A rejection by its reason, an attempt by its kind and result."""
    counts = tallies()
    attempts = (
        an_attempt(result="unreachable"),
        an_attempt(result="connection_reset", kind="retry"),
        an_attempt(actual_cached_input_tokens=None, kind="failover"),
    )
    counts.on_outcome(an_outcome(status=502, reason=Reason.POD_LOST, attempts=attempts, usage=None, ttft_s=None))
    tally = counts.models["tiny"]
    assert tally.requests == {(502, "pod_lost"): 1}
    assert tally.attempts == {("first", "unreachable"): 1, ("retry", "connection_reset"): 1, ("failover", "ok"): 1}
    assert (tally.predicted_requests, sum(latency(counts).ttft_s.counts)) == (0, 0)
    counts.count_rejection(Reason.BAD_JSON)
    assert counts.early == {Reason.BAD_JSON: 1}


def test_a_pod_that_reports_nothing_is_not_judged() -> None:
    """Unknown is not zero: a prediction that cannot be checked is neither right nor wrong."""
    counts = tallies()
    counts.on_outcome(an_outcome(usage=Usage(100, 5, None), attempts=(an_attempt(actual_cached_input_tokens=None),)))
    tally = counts.models["tiny"]
    assert (tally.cached_tokens, tally.predicted_requests, tally.predicted_cached_tokens) == (0, 0, 0)


def test_time_per_token_is_of_streams_only() -> None:
    """An answer in one piece has no pace, nor has one of a single token."""
    counts = tallies()
    counts.on_outcome(an_outcome(request=a_request(stream=False)))
    counts.on_outcome(an_outcome(usage=Usage(100, 1)))
    assert sum(latency(counts).tpot_s.counts) == 0


def test_names_are_bounded() -> None:
    """Invented models and tenants beyond the cap are `other`; who was counted under a name keeps it."""
    counts = tallies(max_models=2, max_tenants=1)
    for model in ("a", "invented", "b", "c", "a"):
        counts.on_outcome(an_outcome(request=a_request(model=model), tenant=model))
    assert {name: sum(tally.requests.values()) for name, tally in counts.models.items()} == {"a": 2, OTHER: 3}
    assert {name: tally.requests for name, tally in counts.tenants.by_tenant.items()} == {"a": 2, OTHER: 3}


def test_anonymous_callers_are_no_tenant() -> None:
    """Without a policy there is nobody to tell apart."""
    counts = tallies()
    counts.on_outcome(an_outcome(tenant=None))
    assert counts.tenants.by_tenant == {}


@given(st.lists(st.floats(0, 100), max_size=50))
def test_a_histogram_loses_nothing(values: list[float]) -> None:
    """Each value is in exactly one bucket, the one whose bound is the first not below it."""
    histogram = Histogram((0.5, 1.0, 10.0))
    for value in values:
        histogram.observe(value)
    assert histogram.counts == [
        sum(value <= 0.5 for value in values),
        sum(0.5 < value <= 1.0 for value in values),
        sum(1.0 < value <= 10.0 for value in values),
        sum(value > 10.0 for value in values),
    ]
    assert histogram.total == pytest.approx(sum(values))


def test_every_kind_has_its_count() -> None:
    """Also those of which there was none."""
    budget, lateness = (
        RetryBudget(RetryTerms(budget_burst=2)),
        StallDetector(StallBounds(engine_min_s=1.0, initial_s=0.1), 60.0),
    )
    assert [budget.take(what) for what in (RetryKind.RESUME, RetryKind.FAILOVER, RetryKind.RETRY)] == [
        True,
        True,
        False,
    ]
    vigil = lateness.watch("e", "m", 0.1, 0.0)
    while vigil.check_silence(now_s := vigil._looked_s + 0.2) is None:
        assert now_s < 100
    registry = CollectorRegistry()
    registry.register(RetryCollector(budget, lateness.stalls))
    page = generate_latest(registry).decode()
    for line in (
        'hearth_retry_budget_exhausted_total{kind="resume"} 0.0',
        'hearth_retry_budget_exhausted_total{kind="retry"} 1.0',
        "hearth_retry_budget_balance 0.0",
        'hearth_stalls_total{kind="engine"} 1.0',
        'hearth_stalls_total{kind="stream"} 0.0',
    ):
        assert line in page
    assert lateness.stalls == {StallVerdict.ENGINE: 1}
