"""The retry rule, against OpenAI's own client where that is at hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bench.slo.retrying import BROKEN, RETRIES, wait_before_next

STATUSES = (200, 400, 401, 404, 408, 409, 422, 429, 499, 500, 502, 503, 504, 529)

HEADERS: tuple[dict[str, str], ...] = (
    {},
    {"retry-after": "3"},
    {"retry-after": "120"},
    {"retry-after": "121"},
    {"retry-after": "0"},
    {"retry-after": "-5"},
    {"retry-after": "soon"},
    {"retry-after": "inf"},
    {"retry-after-ms": "250", "retry-after": "1"},
    {"retry-after-ms": "250000"},
    {"x-should-retry": "false"},
    {"x-should-retry": "true"},
    {"x-should-retry": "true", "retry-after": "600"},
    {"x-should-retry": "perhaps"},
)


@pytest.mark.parametrize("headers", HEADERS, ids=str)
def test_agrees_with_openais_client(headers: dict[str, str]) -> None:
    """Whether to ask again, and the wait that a server asked for, are what the SDK makes of the same answer."""
    openai = pytest.importorskip("openai")
    sdk: Any = openai.OpenAI(api_key="none")
    for status in STATUSES[1:]:
        response = SimpleNamespace(status_code=status, headers=headers)
        wait_s = wait_before_next(status, headers, 0, 0.0)
        assert (wait_s is not None) == sdk._should_retry(response), status
        if wait_s is not None:
            theirs = sdk._calculate_retry_timeout(RETRIES, SimpleNamespace(get_max_retries=lambda _: RETRIES), headers)
            assert 0.75 * wait_s <= theirs <= wait_s, status


def test_gives_up_after_two_retries() -> None:
    """The third refusal is the last, whatever the server says."""
    assert wait_before_next(429, {"x-should-retry": "true"}, 1, 0.0) is not None
    assert wait_before_next(429, {"x-should-retry": "true"}, 2, 0.0) is None


def test_waits_longer_each_time_less_a_draw() -> None:
    """Half a second, then a second; up to a quarter less."""
    assert [wait_before_next(500, {}, retries, 0.0) for retries in (0, 1)] == [0.5, 1.0]
    assert wait_before_next(BROKEN, {}, 0, 1.0) == 0.375


def test_an_answer_is_no_reason_to_ask_again() -> None:
    """A head of success ends it, also where the stream behind it breaks."""
    assert wait_before_next(200, {}, 0, 0.0) is None
