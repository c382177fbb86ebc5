"""Least loaded."""

import pytest

from routing.request import Api, Request
from scorers.least_loaded import LeastLoaded
from tests.scorers.columns import candidates_of


def test_it_is_what_stands_before_a_request() -> None:
    """Queue at its pace and a step for every sequence; blind to what is warm."""
    seen = candidates_of(3, ahead_s=[0.0, 0.1, 0.0], running=[10.0, 0.0, 0.0], warm_tokens=[900.0, 900.0, 0.0])
    assert LeastLoaded().score(Request("r", Api.CHAT, "m"), seen) == [pytest.approx(0.2), pytest.approx(0.1), 0.0]
