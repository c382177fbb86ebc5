"""A prefix that many share gets as many copies as pay, with no rule for it but seconds."""

from random import Random

import pytest

from simulator.profile import Profile
from simulator.records import Record
from simulator.replay import Setting, play
from simulator.traces import Arrival, Trace, make_trace

BLOCK = 64
DOCUMENT_BLOCKS = 300
PODS = 8


def questions(rate: float, length_s: float) -> Trace:
    """Short questions on one long document, by a draw."""
    draw, at_s = Random(1), 0.0
    arrivals: list[Arrival] = []
    while (at_s := at_s + draw.expovariate(rate)) < length_s:
        own = 1_000_000 * (len(arrivals) + 1)
        runs = ((0, DOCUMENT_BLOCKS), (own, 4))
        arrivals.append(Arrival(at_s, BLOCK * (DOCUMENT_BLOCKS + 4) + 10, 100, None, runs))
    return make_trace("questions", arrivals, BLOCK)


def answered(trace: Trace, routing: str = "warm") -> tuple[Record, ...]:
    profile = Profile(block_size=BLOCK, kv_capacity_tokens=200_000)
    return play(trace, Setting(routing, PODS, profile)).records


def copies(records: tuple[Record, ...]) -> int:
    """On how many pods the document was computed; never twice on one."""
    computed = [one.pod for one in records if (one.cached_tokens or 0) < BLOCK * DOCUMENT_BLOCKS / 2]
    assert len(set(computed)) == len(computed)
    return len(computed)


def mean_ttft_s(records: tuple[Record, ...]) -> float:
    return sum(one.ttft_s or 0.0 for one in records) / len(records)


@pytest.mark.parametrize(("rate", "fewest", "most"), [(0.2, 1, 1), (2.0, 1, 3), (40.0, 4, PODS)])
def test_copies_are_made_as_demand_pays_for_them(rate: float, fewest: int, most: int) -> None:
    """One where questions come now and then; more as they wait for each other; never one that nobody waits for."""
    assert fewest <= copies(answered(questions(rate, 60.0))) <= most


def test_a_burst_on_one_prefix_does_not_pile_up() -> None:
    """Within a few seconds as quick as a router to which every copy is free; never on few of the pods
    while others are idle.
    """
    crowd = questions(40.0, 60.0)
    ours = answered(crowd)
    assert mean_ttft_s(ours) <= 2 * mean_ttft_s(answered(crowd, "given-seconds"))
    busiest = max(sum(one.pod == pod for one in ours) for pod in {one.pod for one in ours})
    assert busiest < 2.5 * len(ours) / PODS
