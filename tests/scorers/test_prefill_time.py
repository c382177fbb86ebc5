"""Seconds until the first token."""

import pytest

from routing.request import Api, Request
from scorers.prefill_time import PrefillTime
from tests.scorers.columns import candidates_of

REQUEST = Request("r", Api.CHAT, "m")


def test_it_is_overhead_queue_and_own_work_at_the_engines_pace() -> None:
    """Each engine by its own numbers."""
    seen = candidates_of(
        3,
        prefill_overhead_s=[0.01, 0.02, 0.01],
        ahead_s=[0.0, 0.05, 0.4],
        prefill_work=[1000.0, 1000.0, 0.0],
        seconds_per_token=[0.001, 0.0001, 0.0001],
    )
    assert PrefillTime().score(REQUEST, seen) == [pytest.approx(1.01), pytest.approx(0.17), pytest.approx(0.41)]


def test_a_warm_engine_with_a_long_queue_loses_to_a_cold_idle_one() -> None:
    """Cached tokens and load are compared in seconds: neither wins on principle."""
    warm_but_busy = candidates_of(2, prefill_work=[100.0, 1000.0], ahead_s=[0.2, 0.0])
    warm_and_nearly_idle = candidates_of(2, prefill_work=[100.0, 1000.0], ahead_s=[0.02, 0.0])
    busy, idle = PrefillTime().score(REQUEST, warm_but_busy), PrefillTime().score(REQUEST, warm_and_nearly_idle)
    assert busy[0] > busy[1]
    assert idle[0] < idle[1]
