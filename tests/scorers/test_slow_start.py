"""A pod that has just become ready ramps up."""

import pytest

from routing.request import Api, Request
from scorers.slow_start import SlowStart
from tests.scorers.columns import candidates_of

REQUEST = Request("r", Api.CHAT, "m")


def test_requests_on_a_new_pod_count_as_waiting() -> None:
    """A pod without requests has no penalty; each request adds one that falls as the window passes."""
    seen = candidates_of(
        5, now_s=100.0, ready_since_s=[100.0, 100.0, 95.0, 90.0, 0.0], running=[0.0, 4.0, 4.0, 4.0, 4.0]
    )
    assert SlowStart(window_s=10.0, per_request_s=0.5).score(REQUEST, seen) == [0.0, 2.0, pytest.approx(1.0), 0.0, 0.0]


def test_nothing_is_scored_after_the_window() -> None:
    """From the end of the newest pod's window on."""
    assert SlowStart(window_s=10.0).score(REQUEST, candidates_of(2, now_s=100.0, ready_since_s=[0.0, 90.0])) == []
    assert SlowStart(window_s=10.0).score(REQUEST, candidates_of(2, now_s=99.0, ready_since_s=[0.0, 90.0])) != []


def test_equally_new_pods_have_no_penalty() -> None:
    """After a start of the gateway all pods are new to it."""
    assert SlowStart(window_s=10.0).score(REQUEST, candidates_of(2, now_s=9.0, ready_since_s=[5.0, 5.0])) == []


def test_ages_count_from_the_oldest_pod() -> None:
    """Between pods that are all new the older one is preferred by the difference of their ages."""
    seen = candidates_of(2, now_s=9.0, ready_since_s=[1.0, 5.0], running=[2.0, 2.0])
    assert SlowStart(window_s=10.0, per_request_s=0.5).score(REQUEST, seen) == [0.0, pytest.approx(0.4)]
