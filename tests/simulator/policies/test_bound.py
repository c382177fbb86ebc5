"""The clairvoyant bound is what Belady's rule finds, and no replay finds more."""

from dataclasses import replace

import pytest

from simulator.policies.bound import clairvoyant_hits, clairvoyant_ratio
from simulator.policies.registry import COMPARED
from simulator.profile import Profile
from simulator.replay import Setting, play
from simulator.report import report_on
from simulator.traces import Arrival, make_trace
from simulator.workload import TEAMS, generate


def test_the_block_wanted_last_goes_first() -> None:
    """Room for one: least recently used would keep 2 and never hit."""
    chains = [[1], [2], [1], [2]]
    assert clairvoyant_hits(chains, [1] * 4, 1) == [0, 0, 1, 0]
    assert clairvoyant_hits(chains, [1] * 4, 2) == [0, 0, 1, 1]


def test_a_chain_loses_its_tail_first() -> None:
    """Blocks behind a missing one are of no use."""
    chains = [[1, 2, 3], [9], [1, 2, 3]]
    assert clairvoyant_hits(chains, [3, 1, 3], 2) == [0, 0, 2]


def test_the_last_token_is_always_computed() -> None:
    """A prompt of exactly two blocks can find one."""
    trace = make_trace("twice", [Arrival(at, 64, 1, None, ((0, 2),)) for at in (0.0, 9.0)], 32)
    assert clairvoyant_ratio(trace, 1 << 20) == pytest.approx(32 / 128)


@pytest.mark.parametrize("kv_tokens", [60_000, 1_000_000])
def test_no_policy_finds_more(kv_tokens: int) -> None:
    """Whatever its rule, with caches small and large."""
    trace = generate(TEAMS, 150, seed=3)
    profile = replace(Profile(block_size=16), kv_capacity_tokens=kv_tokens)
    bound = clairvoyant_ratio(trace, 3 * kv_tokens)
    hits = {name: report_on(play(trace, Setting(name, 3, profile)), profile).hit_ratio for name in COMPARED}
    assert max(hits.values()) <= bound
    assert max(hits.values()) > 0.3 * bound
