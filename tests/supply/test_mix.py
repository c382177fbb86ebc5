"""The cheapest mix of pools, beside a search over all of them."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from supply.mix import PoolOption, cheapest_mix, is_carried

options_of = st.lists(
    st.builds(
        PoolOption,
        name=st.just(""),
        needed=st.floats(0.5, 9),
        lowest=st.integers(0, 1),
        highest=st.integers(1, 10),
        rank=st.just(0),
        price_per_hour=st.floats(0.5, 5),
    ),
    min_size=1,
    max_size=2,
)


def named(options: list[PoolOption]) -> list[PoolOption]:
    return [
        PoolOption(str(at), one.needed, one.lowest, one.highest, one.rank, one.price_per_hour)
        for at, one in enumerate(options)
    ]


@given(options_of)
def test_the_mix_carries_the_load_at_nearly_the_lowest_price(given_options: list[PoolOption]) -> None:
    """Where all engines together carry it; the price is at most that of one engine above the best."""
    options = named(given_options)
    prices = {option.name: option.price_per_hour for option in options}
    counts = cheapest_mix(options)
    full = {option.name: option.highest for option in options}
    assert all(option.lowest <= counts[option.name] <= option.highest for option in options)
    if not is_carried(options, full):
        assert counts == full
        return
    assert is_carried(options, counts)
    best = min(
        sum(prices[option.name] * count for option, count in zip(options, choice, strict=True))
        for choice in product(*(range(option.lowest, option.highest + 1) for option in options))
        if is_carried(options, dict(zip(prices, choice, strict=True)))
    )
    price = sum(prices[name] * count for name, count in counts.items())
    assert price <= best + max(prices.values()) + 1e-9


def test_lower_ranks_are_filled_first_whatever_they_cost() -> None:
    """On premises is full before the cloud has one engine."""
    home = PoolOption("home", 10.0, 0, 6, rank=0, price_per_hour=9.0)
    cloud = PoolOption("cloud", 5.0, 0, 20, rank=1, price_per_hour=1.0)
    assert cheapest_mix([cloud, home]) == {"home": 6, "cloud": 2}
    assert cheapest_mix([cloud, PoolOption("home", 6.0, 0, 6)]) == {"home": 6, "cloud": 0}


def test_the_last_engine_comes_from_the_pool_that_is_cheapest_for_the_rest() -> None:
    """Large engines at half the price of work, and a small one for the remainder."""
    large = PoolOption("large", 2.2, 0, 9, price_per_hour=4.0)
    small = PoolOption("small", 9.0, 0, 9, price_per_hour=1.1)
    assert cheapest_mix([large, small]) == {"large": 2, "small": 1}


def test_equal_prices_prefer_the_nearer_pool() -> None:
    """Distance decides."""
    near, far = PoolOption("z", 4.0, 0, 9, distance_s=0.01), PoolOption("a", 4.0, 0, 9, distance_s=0.2)
    assert cheapest_mix([far, near]) == {"z": 4, "a": 0}
