"""Pools have a price per engine-hour, each once."""

import pytest

from gateway.config.settings import read_settings


def test_prices_are_read() -> None:
    """By pool, in the operator's currency."""
    settings, table = read_settings(
        "pools: [{name: a, cost_per_engine_hour: 2.4}, {name: b, cost_per_engine_hour: 0}]", {}
    )
    assert table.errors == []
    assert settings.engine_hour_prices == {"a": 2.4, "b": 0.0}


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("pools: [{name: a}]", "pools[0].cost_per_engine_hour"),
        ("pools: [{cost_per_engine_hour: 1}]", "pools[0].name"),
        ("pools: [{name: a, cost_per_engine_hour: -1}]", "pools[0].cost_per_engine_hour"),
        ("pools: [{name: a, cost_per_engine_hour: 1}, {name: a, cost_per_engine_hour: 2}]", "pools[1].name"),
        ("pools: [{name: a, cost_per_engine_hour: 1, price: 2}]", "pools[0].price"),
    ],
)
def test_a_fault_names_its_place(written: str, place: str) -> None:
    """Missing, negative, twice or unknown."""
    _, table = read_settings(written, {})
    assert [fault.path for fault in table.errors] == [place]
