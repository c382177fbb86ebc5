"""How much comes to engines, as of late."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pytest

from routing.flow import LEAST_SEEN_S, MEMORY_S, TICK_S, Flow

ALL: Any = itemgetter(slice(4))
FIRST_TWO: Any = itemgetter(slice(2))
LAST_TWO: Any = itemgetter(slice(2, 4))


def flow_of(slots: Sequence[int], *, each_s: float, prefill_s: float, until_s: float, from_s: float = 1e6) -> Flow:
    """One request after the other, on the slots in turn."""
    flow = Flow()
    flow.reach(4)
    for number in range(int(until_s / each_s)):
        flow.observe(slots[number % len(slots)], prefill_s, from_s + number * each_s)
    return flow


@pytest.mark.parametrize("until_s", [10.0, 100.0, 1000.0])
def test_a_steady_flow_is_told_as_it_is(until_s: float) -> None:
    """Per engine, whatever the time since the first request."""
    flow = flow_of([0, 1, 2, 3], each_s=0.1, prefill_s=0.2, until_s=until_s)
    rate, busy = flow.rates(ALL, 1e6 + until_s)
    assert rate == pytest.approx(10 / 4, rel=0.05)
    assert busy == pytest.approx(10 / 4 * 0.2, rel=0.05)


def test_engines_of_other_models_are_not_mixed_in() -> None:
    """Each roster has its own flow, in whatever order they ask."""
    flow = flow_of([0, 1], each_s=0.1, prefill_s=0.1, until_s=100.0)
    assert flow.rates(FIRST_TWO, 1e6 + 100)[0] == pytest.approx(5.0, rel=0.05)
    assert flow.rates(LAST_TWO, 1e6 + 100) == (0.0, 0.0)
    assert flow.rates(FIRST_TWO, 1e6 + 100)[0] == pytest.approx(5.0, rel=0.05)


def test_a_flow_that_ends_is_forgotten() -> None:
    """After a few times its memory next to nothing is left of it."""
    flow = flow_of([0], each_s=0.1, prefill_s=0.1, until_s=100.0)
    assert flow.rates(ALL, 1e6 + 100 + 5 * MEMORY_S)[0] < 0.05


def test_the_first_request_is_no_flood() -> None:
    """One request in a moment is taken as one in some seconds; before it there is none."""
    flow = Flow()
    flow.reach(4)
    assert flow.rates(ALL, 0.0) == (0.0, 0.0)
    flow.observe(0, 1.0, 50.0)
    assert flow.rates(ALL, 50.0 + TICK_S)[0] <= 1 / 4 / LEAST_SEEN_S * 1.2


def test_rates_are_reckoned_now_and_then() -> None:
    """What was told stands for a moment, then what came since is seen."""
    flow = flow_of([0], each_s=0.1, prefill_s=0.1, until_s=10.0)
    told = flow.rates(ALL, 1e6 + 10)
    for _ in range(50):
        flow.observe(0, 0.1, 1e6 + 10)
    assert flow.rates(ALL, 1e6 + 10 + TICK_S / 2) == told
    assert flow.rates(ALL, 1e6 + 10 + TICK_S)[0] > 1.3 * told[0]
