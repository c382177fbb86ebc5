"""Where no policy names tiers, nothing is promised."""

from math import inf

import pytest

from tenancy.objective import DEFAULT_TIER, NO_OBJECTIVE, OverloadAction, Tier, objective_of, relaxed


def test_the_default_tier_guarantees_nothing() -> None:
    """So nothing can be refused for a promise's sake, and nobody goes before anybody."""
    assert (DEFAULT_TIER.ttft_s, DEFAULT_TIER.tpot_s, DEFAULT_TIER.guaranteed_share, DEFAULT_TIER.priority) == (
        inf,
        inf,
        0.0,
        0,
    )
    assert (DEFAULT_TIER.on_overload, DEFAULT_TIER.is_best_effort) == (OverloadAction.REJECT, False)


GOLD = Tier("gold", ttft_s=1.0, ttft_uncached_factor=2.0, tpot_s=0.05)
BRONZE = Tier("bronze", ttft_s=15.0, ttft_uncached_factor=5.0, tpot_s=0.15)


def test_nothing_is_guaranteed_by_default() -> None:
    """No tier, no wish: the same value for all, and it binds nobody."""
    assert objective_of(DEFAULT_TIER) is NO_OBJECTIVE
    assert not NO_OBJECTIVE.is_bound
    assert objective_of(DEFAULT_TIER, ttft_s=1.0).is_bound


def test_a_relaxed_objective_keeps_what_the_request_requested() -> None:
    """The lower tier's, but for a deadline that came with the request."""
    assert relaxed(objective_of(GOLD), BRONZE) == objective_of(BRONZE)
    requested = relaxed(objective_of(GOLD, ttft_s=0.5), BRONZE)
    assert (requested.tier, requested.ttft_s, requested.ttft_uncached_factor, requested.tpot_s) == (
        BRONZE,
        0.5,
        0.0,
        0.15,
    )


@pytest.mark.parametrize(
    ("first_token_s", "took_s", "tokens", "is_kept"),
    [
        (1.4, 1.4, 1, True),
        (1.41, 1.41, 1, False),
        (1.0, 1.0 + 10 * 0.05, 11, True),
        (1.0, 1.0 + 10 * 0.051, 11, False),
        (0.1, 0.1 + 0.06, 2, False),
        (None, 1.4 + 10 * 0.05, 11, True),
        (None, 1.41 + 10 * 0.05, 11, False),
        (None, 0.2, 11, True),
        (None, 1.4, 0, True),
        (None, 1.41, 0, False),
    ],
)
def test_an_objective_is_met_to_the_last_token(
    first_token_s: float | None, took_s: float, tokens: int, is_kept: bool
) -> None:
    """First token in time for its own cold prompt, then a pace; an answer that comes whole has both together."""
    promise = objective_of(GOLD)
    assert promise.is_met(own_s=0.2, first_token_s=first_token_s, took_s=took_s, tokens=tokens) is is_kept


def test_without_a_pace_objective_any_pace_meets_it() -> None:
    """Infinite seconds per token, whole answers included."""
    promise = objective_of(Tier("slow", ttft_s=1.0))
    assert promise.tpot_s == inf
    assert promise.is_met(own_s=0.0, first_token_s=None, took_s=100.0, tokens=2)
    assert not promise.is_met(own_s=0.0, first_token_s=1.1, took_s=100.0, tokens=2)
