"""Values that the tests of the gateway begin from; each takes what a test wants different."""

from __future__ import annotations

from typing import Any

from gateway.observe.metrics.request_groups import single_attempts, single_group
from gateway.observe.operators.outcome_totals import OutcomeTotals
from gateway.pipeline.record import Outcome
from gateway.runtime.metric_families import Histogram
from routing.candidates import CandidateShown
from routing.decision.placement import AttemptReceipt
from routing.request import Api, Request, Usage

AT_S = 1_795_186_398.25
"""2026-11-20T14:53:18.250Z."""


def an_attempt(**changes: Any) -> AttemptReceipt:
    values: dict[str, Any] = {
        "engine": "http://a:1",
        "result": "ok",
        "candidates": (CandidateShown("http://a:1", True, 0.1, {"prefill": 0.1}, 64, 0, 1),),
        "candidate_count": 1,
        "predicted_input_tokens": 100,
        "predicted_cached_input_tokens": 64,
        "actual_cached_input_tokens": 96,
        "predicted_ttft_s": 0.1,
        "actual_ttft_s": 0.15,
    }
    return AttemptReceipt(**values | changes)


def a_request(**changes: Any) -> Request:
    values: dict[str, Any] = {"id": "r-1", "api": Api.CHAT, "model": "tiny", "stream": True}
    return Request(**values | changes)


def an_outcome(**changes: Any) -> Outcome:
    """`request` describes it; all other changes are fields of its record."""
    values: dict[str, Any] = {
        "request": a_request(),
        "at_s": AT_S,
        "tenant": "legal",
        "status": 200,
        "finish_reason": "stop",
        "usage": Usage(100, 11, 96),
        "attempts": (an_attempt(),),
        "ttft_s": 0.25,
        "duration_s": 1.25,
        "decode_s": 1.0,
    }
    values |= changes
    request: Request = values.pop("request")
    values |= {field: getattr(request, field) for field in ("id", "api", "model", "stream", "session", "prompt")}
    values |= {"downgraded_from": request.downgraded_from, "prompt_bytes": request.prompt.size}
    values["max_tokens"] = None if request.max_tokens is None else request.max_tokens * request.sequences
    return Outcome(**values)


def count(totals: OutcomeTotals, outcome: Outcome) -> None:
    """Add one request to the totals of the operators' page."""
    totals.add(single_group(outcome))
    for sums in single_attempts(outcome, outcome.model, Histogram(())):
        totals.add_attempts(sums)
