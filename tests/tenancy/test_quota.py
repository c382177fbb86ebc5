"""A quota knows whether it limits anything."""

import pytest

from tenancy.quota import UNLIMITED, Quota


def test_without_limits_nothing_is_refused() -> None:
    """That is what is usual."""
    assert UNLIMITED.is_unlimited
    assert Quota() == UNLIMITED


@pytest.mark.parametrize(
    "quota",
    [Quota(requests_per_min=1), Quota(parallel_requests=1), Quota(budget=0.5), Quota(uncached_tokens_per_min=1)],
)
def test_any_limit_limits(quota: Quota) -> None:
    """Whichever it is."""
    assert not quota.is_unlimited
