"""What is fair, in figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.slo.fairness import fair_parts, jain_index

AMOUNTS = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 100), min_size=1)


def test_jains_index() -> None:
    """1 where all have the same, 1 / n where one has all, by his formula between."""
    assert jain_index([3, 3, 3]) == 1.0
    assert jain_index([0, 5, 0, 0]) == 0.25
    assert jain_index([1, 2]) == pytest.approx(9 / 10)
    assert jain_index([]) == jain_index([0, 0]) == 1.0


def test_what_is_not_wanted_goes_to_the_others() -> None:
    """By weight, and nobody gets more than he asks for."""
    demand, weight = {"a": 1.0, "b": 50.0, "c": 50.0}, {"a": 5.0, "b": 1.0, "c": 2.0}
    assert fair_parts(demand, weight, 10.0) == pytest.approx({"a": 1.0, "b": 3.0, "c": 6.0})


@given(AMOUNTS, st.floats(0, 300))
def test_all_is_given_out(demand: dict[str, float], in_all: float) -> None:
    """Nothing is kept back while anybody wants more, and nothing is given twice."""
    parts = fair_parts(demand, dict.fromkeys(demand, 1.0), in_all)
    assert sum(parts.values()) == pytest.approx(min(in_all, sum(demand.values())))
    assert all(0 <= parts[name] <= demand[name] + 1e-9 for name in demand)
    maximum = max(parts.values())
    assert all(parts[name] >= min(demand[name], maximum) - 1e-9 for name in demand)
