"""File descriptors are shared out so that no kind of connection takes those of another."""

from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.descriptors import descriptors_wanted, raise_limit, share_out


@given(st.integers(1, 2_000_000), st.integers(1, 100_000))
def test_shares_keep_to_what_there_is(descriptors: int, max_connections: int) -> None:
    """Clients, those that are told no, and pods: together less than all, and each at least one."""
    shares = share_out(descriptors, max_connections)
    assert 1 <= shares.clients <= max_connections
    assert shares.overflow >= 1
    assert shares.pods >= 1
    if descriptors > 128:
        assert shares.clients + shares.overflow + shares.pods <= descriptors - 32


@pytest.mark.parametrize("max_connections", [1, 50, 1000, 20_000])
def test_what_is_wanted_is_enough(max_connections: int) -> None:
    """With as many descriptors as are wanted, all clients find room, each with a connection to a pod."""
    shares = share_out(descriptors_wanted(max_connections), max_connections)
    assert shares.clients == max_connections
    assert shares.pods >= max_connections


def test_the_soft_limit_is_raised_as_far_as_the_hard_one_allows() -> None:
    """And never lowered."""
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert raise_limit(1) == soft
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, hard), hard))
        assert raise_limit(300) == min(300, hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(300, hard)
        assert raise_limit(hard + 1000) == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
