"""Counters of service: who has had least goes first, and nobody saves up by staying away."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tenancy.service import Service, price


def test_an_answer_costs_more_than_a_prompt() -> None:
    """A generated token counts double."""
    assert price(100, 0) == 100
    assert price(0, 100) == 200


def test_weights_stretch_what_was_had() -> None:
    """Who has twice the weight may have twice as much."""
    service = Service()
    service.enter("light")
    service.enter("heavy")
    service.serve("light", 100, 1.0)
    service.serve("heavy", 200, 2.0)
    assert service.of("light") == service.of("heavy") == 100


def test_who_comes_back_starts_with_the_least_of_those_here() -> None:
    """It is not owed what others were served meanwhile."""
    service = Service()
    service.enter("busy")
    service.serve("busy", 1_000, 1.0)
    service.enter("late")
    assert service.of("late") == 1_000


def test_leaving_does_not_mend_what_one_has_had() -> None:
    """A tenant that ends all its requests for a moment comes back where it was, while others are here."""
    service = Service()
    service.enter("modest")
    service.enter("greedy")
    service.serve("greedy", 500, 1.0)
    service.leave("greedy")
    service.enter("greedy")
    assert service.of("greedy") == 500
    assert service.of("modest") == 0


def test_what_came_to_nothing_is_refunded() -> None:
    """Served less than expected, the counter falls again."""
    service = Service()
    service.enter("a")
    service.serve("a", 300, 1.0)
    service.serve("a", -300, 1.0)
    assert service.of("a") == 0


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(1, 1_000)), min_size=40, max_size=200),
    st.sampled_from([1.0, 2.0, 4.0]),
)
def test_counters_of_those_who_always_wait_converge(served: list[tuple[str, float]], weight: float) -> None:
    """Served by least counter, two backlogged tenants are never further apart than one request (VTC's bound)."""
    service, weights = Service(), {"a": 1.0, "b": weight}
    for tenant in weights:
        service.enter(tenant)
    for _, tokens in served:
        service.serve(tenant := min(weights, key=service.of), tokens, weights[tenant])
        assert abs(service.of("a") - service.of("b")) <= 1_000
