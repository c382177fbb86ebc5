"""The table of refusals: every reason can be said, in the statuses and words that clients' libraries go by."""

from __future__ import annotations

import json

import pytest

from gateway.refusals import SAYINGS, refusal_body, refusal_headers, status_of
from routing.refusal import Reason, Refused


def test_every_reason_has_a_saying() -> None:
    """A refusal that nobody has words for would be a crash at the worst moment."""
    assert set(SAYINGS) == set(Reason)


@pytest.mark.parametrize(
    ("reason", "status", "kind", "code"),
    [
        (Reason.RATE_LIMITED_REQUESTS, 429, "requests", "rate_limit_exceeded"),
        (Reason.RATE_LIMITED_TOKENS, 429, "tokens", "rate_limit_exceeded"),
        (Reason.TOO_MANY_PARALLEL, 429, "requests", "rate_limit_exceeded"),
        (Reason.BUDGET_EXHAUSTED, 429, "insufficient_quota", "insufficient_quota"),
        (Reason.OVERLOADED, 429, "rate_limit_error", "slow_down"),
        (Reason.QUEUE_FULL, 429, "rate_limit_error", "slow_down"),
        (Reason.QUEUE_TIMEOUT, 429, "rate_limit_error", "slow_down"),
    ],
)
def test_limits_and_overload_are_said_in_openais_words(reason: Reason, status: int, kind: str, code: str) -> None:
    """OpenAI's clients tell by type and code what ran out, and whether to slow down."""
    body = json.loads(refusal_body(Refused(reason, "No."), anthropic=False, request_id="r"))
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
def test_limits_and_overload_are_said_in_anthropics_words(reason: Reason, status: int, kind: str) -> None:
    """Anthropic's clients know overload as 529."""
    body = json.loads(refusal_body(Refused(reason, "No."), anthropic=True, request_id="r"))
    assert status_of(reason, anthropic=True) == status
    assert body["error"]["type"] == kind


def test_what_cannot_help_is_not_retried() -> None:
    """Clients that retry any 409 or 429 are told where that would be in vain, and only there."""
    hopeless = {reason for reason in Reason if refusal_headers(Refused(reason, "No.")).get("x-should-retry") == "false"}
    assert {Reason.SUPERSEDED, Reason.BUDGET_EXHAUSTED, Reason.REGION_NOT_ALLOWED} <= hopeless
    assert (
        not {Reason.RATE_LIMITED_TOKENS, Reason.OVERLOADED, Reason.QUEUE_TIMEOUT, Reason.TOO_MANY_PARALLEL} & hopeless
    )
