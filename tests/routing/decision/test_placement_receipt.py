"""The receipt's line for one attempt."""

import pytest

from routing.decision.placement import attempt_receipt
from routing.request import Usage
from tests.routing.engines import TALK, ask, place, router_of, serve


def test_a_receipt_reports_predicted_and_real() -> None:
    """Engine, candidates, warm tokens and seconds, as believed and as they were."""
    router = router_of(3)
    serve(router, ask(TALK), draw=0.4)
    placement = place(router, ask(TALK), now_s=10.0)
    placement.first_token(10.25)
    attempt = attempt_receipt(placement, "ok", Usage(2000, 5, 1984))
    assert (attempt.engine, attempt.result) == (placement.engine.name, "ok")
    assert (attempt.actual_cached_input_tokens, attempt.actual_ttft_s) == (1984, 0.25)
    assert attempt.predicted_cached_input_tokens == round(placement.predicted.cached_tokens) > 0
    assert attempt.predicted_input_tokens == round(placement.predicted.prompt_tokens)
    assert attempt.predicted_ttft_s == pytest.approx(placement.predicted.ttft_s, abs=1e-6)
    assert attempt.candidate_count == 3
    chosen = [shown for shown in attempt.candidates if shown.chosen]
    assert [shown.engine for shown in chosen] == [placement.engine.name]
    assert set(chosen[0].scores_s) == {"prefill_time", "interference"}
    assert chosen[0].total_s == pytest.approx(sum(chosen[0].scores_s.values()), abs=1e-5)


def test_a_failed_attempt_is_reported_without_what_it_never_had() -> None:
    """No first token, no usage: nothing is made up."""
    placement = place(router_of(1), ask())
    attempt = attempt_receipt(placement, "unreachable", None)
    assert attempt.actual_ttft_s is attempt.actual_cached_input_tokens is None
    assert attempt.result == "unreachable"


def test_a_pod_that_reports_no_cached_tokens_has_no_actual_hits() -> None:
    """Unknown is told as unknown."""
    assert attempt_receipt(place(router_of(1), ask()), "ok", Usage(10, 5)).actual_cached_input_tokens is None
