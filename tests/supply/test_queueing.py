"""The queueing estimate beside exact results and a simulated queue."""

from __future__ import annotations

from heapq import heappop, heappush
from math import exp
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supply.queueing import missed_share, overflow_share


def exact_one_engine(utilisation: float, patience: float) -> float:
    """Loss of M/M/1 with deterministic patience, in units of the mean work."""
    if utilisation == 1:
        return 1 / (2 + patience)
    waiting = exp(-(1 - utilisation) * patience)
    return (1 - utilisation) * utilisation * waiting / (1 - utilisation**2 * waiting)


@pytest.mark.parametrize("utilisation", [0.3, 0.9, 1.0, 1.2, 2.5])
@pytest.mark.parametrize("patience", [0.5, 3.0, 20.0])
def test_one_engine_with_exponential_work_is_exact(utilisation: float, patience: float) -> None:
    """M/M/1+D is the formula that the estimate starts from."""
    found = missed_share(utilisation, 1.0, 2.0, 2.0 * patience)
    assert found == pytest.approx(exact_one_engine(utilisation, patience), rel=0.01, abs=1e-6)


def simulated_loss(utilisation: float, engines: int, slack_s: float, seed: int) -> float:
    """Play a queue with exponential work of one second; a request that would wait longer than its slack is rejected."""
    random = Random(seed)
    at, lost, count = 0.0, 0, 40_000
    free = [0.0] * engines
    for _ in range(count):
        at += random.expovariate(utilisation * engines)
        if free[0] - at > slack_s:
            lost += 1
            continue
        heappush(free, max(heappop(free), at) + random.expovariate(1.0))
    return lost / count


@pytest.mark.parametrize(("utilisation", "engines", "slack_s"), [(0.95, 8, 0.5), (1.0, 8, 1.0), (1.1, 20, 1.0)])
def test_several_engines_are_close_to_a_simulated_queue(utilisation: float, engines: int, slack_s: float) -> None:
    """Within 2.5 points of a hundred, around full use, where the figure matters."""
    simulated = simulated_loss(utilisation, engines, slack_s, 5)
    assert missed_share(utilisation, float(engines), 1.0, slack_s) == pytest.approx(simulated, abs=0.025)


@given(st.floats(0.01, 50), st.floats(0.1, 500), st.floats(0.01, 30), st.floats(0, 100), st.floats(0.1, 10))
def test_misses_are_a_share_and_grow_with_the_load(
    utilisation: float, engines: float, service_s: float, slack_s: float, scv: float
) -> None:
    """Any figures; and they tend to the fluid limit."""
    found = missed_share(utilisation, engines, service_s, slack_s, scv)
    more = missed_share(1.05 * utilisation, engines, service_s, slack_s, scv)
    assert 0 <= found <= 1
    assert more >= found - 1e-6
    assert missed_share(utilisation + 60, engines, service_s, slack_s, scv) == pytest.approx(
        1 - 1 / (utilisation + 60), abs=0.02
    )


def test_sequences_beyond_the_room_follow_the_normal_loss() -> None:
    """At the mean half a deviation's density overflows; far below it nothing does, far above it the excess does."""
    assert overflow_share(100.0, 100.0) == pytest.approx(0.399 / 10, rel=0.01)
    assert overflow_share(100.0, 200.0) < 1e-6
    assert overflow_share(100.0, 25.0) == pytest.approx(0.75, abs=0.01)
    assert overflow_share(0.0, 10.0) == 0.0
