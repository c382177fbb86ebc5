"""File descriptors are shared out so that no kind of connection takes those of another."""

from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.runtime.descriptors import descriptors_allowed, descriptors_wanted, divide_descriptors


@given(st.integers(1, 2_000_000), st.integers(1, 100_000))
def test_shares_keep_to_what_there_is(descriptors: int, max_connections: int) -> None:
    """Clients, those that are told no, and pods: together less than all, and each at least one."""
    shares = divide_descriptors(descriptors, max_connections)
    assert 1 <= shares.clients <= max_connections
    assert shares.overflow >= 1
    assert shares.pods >= 1
    if descriptors > 128:
        assert shares.clients + shares.overflow + shares.pods <= descriptors - 32


@pytest.mark.parametrize("max_connections", [1, 50, 1000, 20_000])
def test_what_is_wanted_is_enough(max_connections: int) -> None:
    """With as many descriptors as are wanted, all clients find room, each with a connection to a pod."""
    shares = divide_descriptors(descriptors_wanted(max_connections), max_connections)
    assert shares.clients == max_connections
    assert shares.pods >= max_connections


def test_the_soft_limit_is_what_counts() -> None:
    """It is what the kernel holds the process to."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(300, before[1]), before[1]))
        assert descriptors_allowed() == min(300, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
