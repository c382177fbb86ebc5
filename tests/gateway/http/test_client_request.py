"""The body of a request being read: what it holds, what is counted for it, and whose share that is."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.limits import Limits
from gateway.http.client_request import MAX_JOINED_BYTES, BodyBudget, IncomingRequest
from routing.rejection import RequestRejected
from tenancy.tenants import Caller, Tenant

MB = 1 << 20
LIMITS = Limits(max_body_bytes=8 * MB)


def asked_by(name: str | None) -> IncomingRequest:
    requested = IncomingRequest()
    requested.caller = Caller(Tenant(name))
    return requested


@pytest.mark.parametrize("size", [1, 2, 100, 4095, 4096, 5000])
def test_a_body_in_pieces_holds_little_more_than_its_bytes(size: int) -> None:
    """However small the pieces of a megabyte are, they take at most a fifth more than is counted for them."""
    requested, budget = IncomingRequest(), BodyBudget(8 * MB)
    tracemalloc.start()
    try:
        for _ in range(MB // size):
            requested.add_body(bytes(size), budget, LIMITS)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.2 * budget.held_bytes
    assert requested.body() == bytes(MB // size * size)
    requested.drop_body(budget)
    requested.drop_body(budget)
    assert budget.held_bytes == 0


@given(st.lists(st.binary(max_size=9000) | st.just(b"x" * MAX_JOINED_BYTES), max_size=20))
def test_a_body_is_what_its_pieces_report_in_their_order(pieces: list[bytes]) -> None:
    """Small pieces are joined and large ones are not: the body is the same, also where it is asked for in between."""
    requested, budget = IncomingRequest(), BodyBudget(64 * MB)
    for number, piece in enumerate(pieces):
        requested.add_body(piece, budget, LIMITS)
        if number % 3 == 0:
            assert requested.body() == b"".join(pieces[: number + 1])
    assert requested.body() == b"".join(pieces)
    assert isinstance(requested.body(), bytes)
    assert budget.held_bytes == sum(map(len, pieces))
    requested.drop_body(budget)
    assert (budget.held_bytes, requested.body()) == (0, b"")


def test_a_tenant_alone_holds_half_of_all_and_others_find_room() -> None:
    """One tenant's bodies stop where as much is free as they hold; the next tenant has half of that."""
    budget = BodyBudget(8 * MB)
    taken = sum(budget.reserve(MB, "greedy") for _ in range(8))
    assert taken == 4
    assert sum(budget.reserve(MB, "other") for _ in range(8)) == 2
    assert not budget.reserve(MB, "greedy")
    assert budget.reserve(2 * MB, None), "without tenants there are no shares"
    for _ in range(4):
        budget.release(MB, "greedy")
    for _ in range(2):
        budget.release(MB, "other")
    budget.release(2 * MB)
    assert budget.held_bytes == 0
    assert sum(budget.reserve(MB, "greedy") for _ in range(8)) == 4


def test_one_body_of_the_largest_size_always_fits_a_tenants_share() -> None:
    """Where all bodies together are hardly more than one, a tenant may still send one."""
    budget = BodyBudget(8 * MB, max_extra_bytes=8 * MB)
    assert budget.reserve(8 * MB, "any")
    assert not budget.reserve(1, "any")


def test_the_message_names_whose_room_is_used_up() -> None:
    """A tenant learns that its own bodies hold its share; where all is full, that all is."""
    budget = BodyBudget(4 * MB)
    greedy, other, last = asked_by("greedy"), asked_by("other"), asked_by(None)
    greedy.add_body(bytes(2 * MB), budget, LIMITS)
    with pytest.raises(RequestRejected, match="tenant's share of the request body memory"):
        greedy.add_body(b"x", budget, LIMITS)
    other.add_body(bytes(MB), budget, LIMITS)
    last.add_body(bytes(MB), budget, LIMITS)
    with pytest.raises(RequestRejected, match="Request body memory limit"):
        other.add_body(b"x", budget, LIMITS)


def test_a_declared_body_beyond_the_share_is_rejected_by_its_head() -> None:
    """Before a byte of it is sent; a request without a body is never rejected for that."""
    budget = BodyBudget(8 * MB)
    assert budget.reserve(3 * MB, "greedy")
    requested = asked_by("greedy")
    requested.declared_bytes = 2 * MB
    with pytest.raises(RequestRejected, match="tenant's share"):
        requested.check_tenant_share(budget)
    requested.declared_bytes = MB
    requested.check_tenant_share(budget)
    assert budget.reserve(5 * MB)
    requested.declared_bytes = None
    requested.check_tenant_share(budget)
