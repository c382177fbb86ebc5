"""The table of refusals: every reason can be said, in the statuses and words that clients' libraries go by."""

from __future__ import annotations

import json

import pytest

from gateway.pipeline.rejections import RESPONSES, rejection_body, rejection_headers, status_of
from routing.rejection import Reason, RequestRejected


def test_every_reason_has_a_response_spec() -> None:
    """A refusal that nobody has words for would be a crash at the worst moment."""
    assert set(RESPONSES) == set(Reason)


@pytest.mark.parametrize(
    ("reason", "status", "kind", "code"),
    [
        (Reason.RATE_LIMITED_REQUESTS, 429, "requests", "rate_limit_exceeded"),
        (Reason.RATE_LIMITED_TOKENS, 429, "tokens", "rate_limit_exceeded"),
        (Reason.TOO_MANY_PARALLEL_REQUESTS, 429, "requests", "rate_limit_exceeded"),
        (Reason.BUDGET_EXHAUSTED, 429, "insufficient_quota", "insufficient_quota"),
        (Reason.OVERLOADED, 429, "rate_limit_error", "slow_down"),
        (Reason.QUEUE_FULL, 429, "rate_limit_error", "slow_down"),
        (Reason.QUEUE_TIMEOUT, 429, "rate_limit_error", "slow_down"),
    ],
)
def test_limits_and_overload_are_reported_in_openais_format(reason: Reason, status: int, kind: str, code: str) -> None:
    """OpenAI's clients tell by type and code what ran out, and whether to slow down."""
    body = json.loads(rejection_body(RequestRejected(reason, "No."), anthropic=False, request_id="r"))
    assert status_of(reason) == status
    assert (body["error"]["type"], body["error"]["code"]) == (kind, code)


@pytest.mark.parametrize(
    ("reason", "status", "kind"),
    [
        (Reason.RATE_LIMITED_TOKENS, 429, "rate_limit_error"),
        (Reason.BUDGET_EXHAUSTED, 429, "rate_limit_error"),
        (Reason.OVERLOADED, 529, "overloaded_error"),
        (Reason.QUEUE_TIMEOUT, 529, "overloaded_error"),
        (Reason.REGION_NOT_ALLOWED, 403, "permission_error"),
    ],
)
def test_limits_and_overload_are_reported_in_anthropics_format(reason: Reason, status: int, kind: str) -> None:
    """Anthropic's clients know overload as 529."""
    body = json.loads(rejection_body(RequestRejected(reason, "No."), anthropic=True, request_id="r"))
    assert status_of(reason, anthropic=True) == status
    assert body["error"]["type"] == kind


def test_what_cannot_help_is_not_retried() -> None:
    """Clients that retry any 409 or 429 are told where that would be in vain, and only there."""
    hopeless = {
        reason
        for reason in Reason
        if rejection_headers(RequestRejected(reason, "No.")).get("x-should-retry") == "false"
    }
    assert {Reason.SUPERSEDED, Reason.BUDGET_EXHAUSTED, Reason.REGION_NOT_ALLOWED} <= hopeless
    assert (
        not {Reason.RATE_LIMITED_TOKENS, Reason.OVERLOADED, Reason.QUEUE_TIMEOUT, Reason.TOO_MANY_PARALLEL_REQUESTS}
        & hopeless
    )


LLM_D_REASONS = {
    *("rejected-saturated", "rejected-no-endpoints", "rejected-ttl-expired", "rejected-context-cancelled"),
    *("rejected-shutting-down", "evicted", "evicted-queue-pressure", "evicted-priority"),
}
"""As llm-d-router documents them (`pkg/common/error/error.go`)."""


@pytest.mark.parametrize("anthropic", [False, True])
@pytest.mark.parametrize("reason", list(Reason))
def test_llm_ds_header_carries_its_own_values_on_429_only(reason: Reason, *, anthropic: bool) -> None:
    """No reason of ours, no other status (Anthropic's 529 included)."""
    value = rejection_headers(RequestRejected(reason, "No."), anthropic=anthropic).get("x-llm-d-request-dropped-reason")
    assert value is None or (value in LLM_D_REASONS and status_of(reason, anthropic=anthropic) == 429)


@pytest.mark.parametrize(
    ("reason", "value"),
    [
        (Reason.OVERLOADED, "rejected-saturated"),
        (Reason.QUEUE_FULL, "rejected-saturated"),
        (Reason.BODY_MEMORY_EXHAUSTED, "rejected-saturated"),
        (Reason.TOO_MANY_CONNECTIONS, "rejected-saturated"),
        (Reason.QUEUE_TIMEOUT, "rejected-ttl-expired"),
        (Reason.RATE_LIMITED_TOKENS, None),
        (Reason.NO_POD_READY, None),
        (Reason.GATEWAY_DRAINING, None),
    ],
)
def test_requests_dropped_under_load_carry_llm_ds_reason(reason: Reason, value: str | None) -> None:
    """Saturation and an expired wait have a value of llm-d's; a tenant's limits and 503 have none."""
    assert rejection_headers(RequestRejected(reason, "No.")).get("x-llm-d-request-dropped-reason") == value
