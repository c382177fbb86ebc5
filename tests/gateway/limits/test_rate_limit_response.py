"""Limits in the words that clients know."""

from __future__ import annotations

import pytest

from gateway.limits.rate_limit_response import format_period, format_span, format_time, format_wait, rate_limit_headers
from gateway.pipeline.rejections import rejection_headers
from routing.rejection import Reason, RequestRejected
from tenancy.limits.account_usage import UsageStore, reserve
from tenancy.limits.usage import RequestUsage
from tenancy.tenants import Account, Quota

NOW_S = 1.8e9


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, "0ms"), (0.006, "6ms"), (1.0, "1s"), (17.48, "17.48s"), (60.052, "1m0.052s"), (7_380.0, "2h3m0s")],
)
def test_spans_are_written_as_openai_does(seconds: float, shown: str) -> None:
    """Milliseconds below a second, and no zeros that say nothing."""
    assert format_span(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.0501, "51 ms"), (0.9999, "1000 ms"), (1.0, "1 s"), (60.1, "61 s"), (43_200.0, "43200 s")]
)
def test_a_wait_is_reported_as_its_headers_have_it(seconds: float, shown: str) -> None:
    """Rounded up as `retry-after` and `retry-after-ms` are."""
    headers = rejection_headers(RequestRejected(Reason.RATE_LIMITED_TOKENS, "No.", retry_after_s=seconds))
    assert format_wait(seconds) == shown
    assert shown.split(maxsplit=1)[0] == headers["retry-after" if seconds >= 1 else "retry-after-ms"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(86_400.0, "day"), (3_600.0, "hour"), (1_209_600.0, "2 weeks"), (5_400.0, "90 minutes"), (61.0, "61 seconds")],
)
def test_a_period_is_reported_in_its_largest_unit(seconds: float, shown: str) -> None:
    """As one says it behind "per"."""
    assert format_period(seconds) == shown


def test_moments_are_written_as_anthropic_does() -> None:
    """RFC 3339, in UTC."""
    assert format_time(1_800_000_000.7) == "2027-01-15T08:00:00Z"


def test_the_tightest_account_is_reported() -> None:
    """Of a tenant and its user, for each thing that is limited, the one with the least left."""
    tenant = Account("a", Quota(requests_per_min=100, tokens_per_min=5_000))
    user = Account("a/user/b", Quota(requests_per_min=10, output_tokens_per_min=9_000))
    books = UsageStore().of([tenant, user], NOW_S)
    reserve(books, RequestUsage(1, 1_000, 0, 500), NOW_S)
    assert rate_limit_headers(books, NOW_S + 30, anthropic=False) == (
        ("x-ratelimit-limit-requests", "10"),
        ("x-ratelimit-remaining-requests", "9"),
        ("x-ratelimit-reset-requests", "30.5s"),
        ("x-ratelimit-limit-tokens", "5000"),
        ("x-ratelimit-remaining-tokens", "3500"),
        ("x-ratelimit-reset-tokens", "30.5s"),
    )
    reported = dict(rate_limit_headers(books, NOW_S + 30, anthropic=True))
    assert reported["anthropic-ratelimit-requests-remaining"] == "9"
    assert reported["anthropic-ratelimit-input-tokens-limit"] == "5000"
    assert reported["anthropic-ratelimit-output-tokens-remaining"] == "3500"
    assert reported["anthropic-ratelimit-output-tokens-reset"] == "2027-01-15T08:01:00Z"


def test_who_has_no_limit_by_minute_is_sent_nothing() -> None:
    """What runs at a time and money have no header."""
    books = UsageStore().of([Account("a", Quota(parallel_requests=3, budget=4.0))], NOW_S)
    assert rate_limit_headers(books, NOW_S, anthropic=False) == rate_limit_headers(books, NOW_S, anthropic=True) == ()
