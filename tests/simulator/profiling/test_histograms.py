"""An engine's own metrics of a time: differences between scrapes, and nothing where nothing was counted."""

from __future__ import annotations

import pytest

from simulator.link import Link
from simulator.profile import Profile
from simulator.profiling.histograms import EngineTimes, engine_times, link_of, sized, speculation_of
from tests.simulator.profiling.test_route_fit import SCRAPE

EARLIER = """\
vllm:request_prefill_time_seconds_sum{engine="0"} 10.0
vllm:request_prefill_time_seconds_count{engine="0"} 50.0
"""


def test_means_are_those_between_two_scrapes() -> None:
    """Of all engines together; without an earlier scrape, since they began."""
    assert engine_times([SCRAPE]).prefill_s == pytest.approx(0.2)
    assert engine_times([SCRAPE], [EARLIER]).prefill_s == pytest.approx(2.0 / 10)
    assert engine_times([SCRAPE, EARLIER]).prefill_s == pytest.approx(22.0 / 110)
    assert engine_times([SCRAPE]).decode_s == pytest.approx(0.02)


def test_what_was_not_counted_is_not_known() -> None:
    """No histogram, no sizes and no transfers: nothing is made up."""
    assert engine_times(["# HELP x\n"]) == EngineTimes()
    assert sized(Profile(), "a 1\n") == Profile()
    assert link_of([EARLIER]) is None
    assert link_of([SCRAPE], [SCRAPE]) is None


def test_transfers_give_the_link() -> None:
    """Bytes by seconds, bytes by tokens that came from other engines, and the time to post one."""
    assert link_of([SCRAPE]) == Link(1_000, 2e6, 0.001)


def test_drafts_are_counted() -> None:
    """Three a step, of which 0.875 are accepted on average: each with a half, if those before it were."""
    counts = "vllm:spec_decode_num_drafts_total 1000\nvllm:spec_decode_num_draft_tokens_total 3000\n"
    found = speculation_of(counts + "vllm:spec_decode_num_accepted_tokens_total 875\n")
    assert found is not None
    assert found.tokens == 3
    assert found.acceptance_rate == pytest.approx(0.5)
    assert speculation_of(SCRAPE) is None
