"""Which pods go first when a count falls."""

from __future__ import annotations

from dataclasses import replace

from supply.deletion_cost import PodLoad, deletion_costs

COLD = PodLoad("cold", running=1, cached_bytes=10)
HOT = PodLoad("hot", running=1, cached_bytes=900)
BUSY = PodLoad("busy", running=7, cached_bytes=10)
DRAINED = PodLoad("drained", is_drained=True, is_ready=False, running=2, cached_bytes=5_000)
STARTING = PodLoad("starting", is_ready=False)
ALL = (HOT, BUSY, DRAINED, COLD, STARTING)


def test_drained_pods_go_first_and_the_coldest_next() -> None:
    """Then those that do not serve, those with the fewest requests, and those with the least cached."""
    assert deletion_costs(ALL, 1) == {"drained": -4, "starting": -3, "cold": -2, "hot": -1}
    assert deletion_costs(ALL, 4) == {"drained": -1}


def test_a_count_that_does_not_fall_marks_none() -> None:
    """Nor does one that rises, or a pool without pods."""
    assert deletion_costs(ALL, 5) == deletion_costs(ALL, 9) == deletion_costs((), 0) == {}


def test_a_pod_of_several_engines_goes_with_all_of_them() -> None:
    """Two engines of a pool of four may go: not the pod that has three."""
    wide = replace(DRAINED, engines=3)
    assert deletion_costs((wide, HOT), 2) == {"hot": -1}


def test_an_order_that_was_given_stays() -> None:
    """So that pods are patched seldom, however loads move."""
    given = replace(HOT, cost=-2)
    assert deletion_costs((given, COLD, BUSY), 1) == {"hot": -2, "cold": -1}
