"""Metrics pages as windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.facts import EngineWindow, TransferWindow
from diagnosis.readings import (
    MAX_READINGS,
    EngineCounts,
    PodHistory,
    engine_window,
    joined_flags,
    joined_windows,
    load_counts,
    read_counts,
)
from routing.pod_record import EngineLoad
from tests.diagnosis.scene import flags

PAGE = """\
# HELP vllm:num_requests_running running
vllm:num_requests_running{{engine="0",model_name="a"}} {running}
vllm:num_requests_running{{engine="1",model_name="a"}} 7.0
vllm:num_requests_waiting_by_reason{{engine="0",model_name="a",reason="capacity"}} 2.0
vllm:num_requests_waiting_by_reason{{engine="0",model_name="a",reason="deferred"}} 1.0
vllm:kv_cache_usage_perc{{engine="0",model_name="a"}} 0.25
vllm:num_preemptions_total{{engine="0",model_name="a"}} {count}
vllm:prompt_tokens_total{{engine="0",model_name="a"}} {count}
vllm:prompt_tokens_by_source_total{{engine="0",model_name="a",source="local_compute"}} {count}
vllm:request_success_total{{engine="0",model_name="a",finished_reason="stop"}} {count}
vllm:request_success_total{{engine="0",model_name="a",finished_reason="length"}} 1.0
vllm:request_success_total{{engine="0",model_name="a",finished_reason="abort"}} 5.0
vllm:iteration_tokens_total_bucket{{engine="0",le="8.0",model_name="a"}} {count}
vllm:iteration_tokens_total_bucket{{engine="0",le="+Inf",model_name="a"}} {count}
vllm:iteration_tokens_total_count{{engine="0",model_name="a"}} {count}
vllm:iteration_tokens_total_sum{{engine="0",model_name="a"}} {count}
vllm:spec_decode_num_drafts_total{{engine="0",model_name="a"}} {count}
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="a"}} {count}
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="a"}} 0.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="a",position="1"}} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="a",position="0"}} 2.0
vllm:nixl_bytes_transferred_sum{{engine="0",model_name="a"}} {count}
vllm:nixl_bytes_transferred_count{{engine="0",model_name="a"}} {count}
vllm:nixl_num_failed_transfers_total{{engine="0",model_name="a"}} 0.0
vllm:cache_config_info{{engine="0",block_size="32",num_gpu_blocks="10",enable_prefix_caching="False"}} 1.0
vllm:something_else{{engine="0"}} 3.0
process_cpu_seconds_total 12.0
"""


def page(running: float, count: float) -> bytes:
    return PAGE.format(running=running, count=count).encode()


def test_counters_grow_and_gauges_are_read_over_the_window() -> None:
    """From the first page of the window to the last one; what a page lacks is None."""
    history = PodHistory()
    for at, running, count in ((0.0, 9.0, 50.0), (20.0, 1.0, 100.0), (35.0, 2.0, 130.0), (50.0, 6.0, 200.0)):
        history.add(at, read_counts(page(running, count)))
    first, second = history.windows(30.0)
    assert (first.rank, second.rank) == (0, 1)
    assert (first.start_s, first.end_s) == (20.0, 50.0)
    assert first.running is not None
    assert (first.running.mean, first.running.peak, first.running.last) == (3.0, 6.0, 6.0)
    assert first.waiting_for_capacity is not None
    assert first.waiting_for_capacity.mean == 2.0
    assert (first.preemptions, first.computed_tokens, first.finished) == (100.0, 100.0, 100.0)
    assert first.aborted == 0.0
    assert first.generation_tokens is None
    assert first.iteration_tokens is not None
    assert first.iteration_tokens.counts == (100.0, 0.0)
    assert first.speculation is not None
    assert first.speculation.acceptance == 0.0
    assert first.speculation.accepted_by_position == (0.0, 0.0)
    assert first.transfers is not None
    assert (first.transfers.count, first.transfers.bytes) == (100.0, 100.0)
    assert first.transfers.seconds is None
    assert second.preemptions is None
    assert second.speculation is None


def test_one_page_has_gauges_but_no_growth() -> None:
    """What an engine counted before is not the window's."""
    history = PodHistory()
    assert history.windows() == ()
    assert history.flags() is None
    history.add(1.0, read_counts(page(3.0, 10.0)))
    window = history.windows()[0]
    assert window.running is not None
    assert window.preemptions is None
    assert window.length_s == 0.0


def test_tokens_since_the_start_show_what_never_generates() -> None:
    """Of the last page, whatever the window; unknown where the page has no such counter."""
    history = PodHistory()
    for at_s in (0.0, 10.0):
        history.add(at_s, read_counts(b'vllm:generation_tokens_total{engine="0"} 0.0\n'))
    (window,) = history.windows()
    assert (window.generation_tokens, window.generated_since_start) == (0.0, 0.0)
    history.add(20.0, read_counts(b'vllm:generation_tokens_total{engine="0"} 7.0\n'))
    assert history.windows()[0].generated_since_start == 7.0
    history.add(25.0, read_counts(b'vllm:num_requests_running{engine="0"} 0.0\n'))
    assert history.windows()[0].generated_since_start is None


def test_a_restart_begins_a_new_window() -> None:
    """Counters that fell are those of another process."""
    history = PodHistory()
    for at, count in ((0.0, 100.0), (10.0, 120.0), (20.0, 5.0), (30.0, 25.0)):
        history.add(at, read_counts(page(1.0, count)))
    window = history.windows()[0]
    assert window.is_restarted
    assert (window.start_s, window.preemptions) == (20.0, 20.0)


def test_the_cache_configuration_becomes_flags() -> None:
    """And fills in what a command line does not say."""
    history = PodHistory()
    history.add(5.0, read_counts(page(1.0, 1.0)))
    held = history.flags()
    assert held is not None
    assert (held.block_size, held.kv_capacity_tokens, held.prefix_caching) == (32, 320, False)
    both = joined_flags(flags(prefix_caching=None), held)
    assert both is not None
    assert (both.prefix_caching, both.block_size, both.max_num_seqs) == (False, 16, 64)
    assert joined_flags(None, held) is held
    assert joined_flags(held, None) is held


def test_readings_are_bounded() -> None:
    """A pod that is read for days keeps the last ones."""
    history = PodHistory()
    for number in range(3 * MAX_READINGS):
        history.add(number / 2, {0: EngineCounts({"prompt_tokens": float(number)})})
    (window,) = history.windows(1e9)
    assert window.prompt_tokens == MAX_READINGS - 1


@pytest.mark.parametrize(
    "line",
    [
        'vllm:num_requests_running{engine="x"} 1',
        "vllm:num_requests_running nan",
        'vllm:num_requests_running{engine="99999"} 1',
        "vllm:num_requests_running",
    ],
)
def test_odd_lines_are_left_out(line: str) -> None:
    """Neither a wrong rank nor a wrong number becomes a figure."""
    assert read_counts(f"{line}\n".encode()) == {}


@given(st.binary(max_size=300))
def test_any_bytes_can_be_read(noise: bytes) -> None:
    """Nothing raises, before or behind a sound sample."""
    counts = read_counts(noise + b'\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n')
    window = engine_window(0, [(0.0, counts[0])])
    assert window.kv_usage is not None
    assert window.kv_usage.last == 0.5


def test_a_page_in_bad_faith_costs_little_and_ends_nothing() -> None:
    """Long texts without labels, labels without end, positions that are no numbers, and numbers that overflow."""
    long_text = b"a" * 200_000
    many = b"".join(b'vllm:request_success_total{finished_reason="r%d"} 1\n' % number for number in range(1000))
    text = (
        b"vllm:num_requests_running{" + long_text + b"} 1\n" + many + b"vllm:prompt_tokens_total 1e308\n"
        b"vllm:generation_tokens_total -1\n"
        b'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="x1"} 1\n'
        b"vllm:spec_decode_num_drafts_total 1\n"
        b'vllm:cache_config_info{cache_dtype="/root/key",prefix_caching_hash_algo="sha256",other="'
        + long_text
        + b'"} 1\n'
    )
    counts = read_counts(text)
    assert sorted(counts[0].scalars) == ["num_requests_running", "spec_decode_num_drafts"]
    assert sum(map(len, counts[0].config.values())) < 100
    history = PodHistory()
    history.add(0.0, counts)
    history.add(10.0, counts)
    assert len(history.windows()) == 1
    held = history.flags()
    assert held is not None
    assert (held.kv_dtype, held.hash_algorithm) == (None, "sha256")
    assert read_counts(text * 20) == {}


def test_a_clock_that_is_set_back_drops_earlier_readings() -> None:
    """Windows begin anew: no window spans the jump."""
    history = PodHistory()
    for at_s in (1000.0, 1010.0, 500.0, 510.0):
        history.add(at_s, read_counts(page(1.0, 10.0)))
    assert {(window.start_s, window.end_s) for window in history.windows()} == {(500.0, 510.0)}


def load(**changes: Any) -> EngineLoad:
    counters = {"preemptions": 4.0, "prefix_queries": 900.0, "prefix_hits": 300.0, "failed_handshakes": 1.0}
    return EngineLoad(**{"running": 3, "waiting": 1, "kv_usage": 0.5, "counters": counters, **changes})


def reported(*loads: EngineLoad, begin_s: float = 100.0) -> tuple[EngineWindow, ...]:
    """Windows of what a plugin has reported every 5 s."""
    history = PodHistory()
    for number, each in enumerate(loads):
        history.add(begin_s + 5 * number, {each.rank: load_counts(each)})
    return history.windows()


def test_what_a_plugin_reports_grows_like_a_page() -> None:
    """Counters that it leaves out are 0 where every engine has them, and missing where it may have none of it."""
    moved = {"transfers": 6.0, "transfer_s": 3.0, "transfer_bytes": 6e9, "preemptions": 9.0, "prefix_queries": 950.0}
    begun = {"transfers": 2.0, "transfer_s": 1.0, "transfer_bytes": 2e9, "prefix_queries": 900.0}
    (window,) = reported(load(counters=begun, fetching={"in_progress": 2}), load(counters=moved))
    assert (window.preemptions, window.cache_queries, window.cache_hits) == (9.0, 50.0, 0.0)
    assert window.transfers is not None
    assert (window.transfers.count, window.transfers.seconds, window.transfers.bytes) == (4.0, 2.0, 4e9)
    assert window.transfers.failed is None
    assert window.speculation is None
    assert window.running is not None
    assert window.running.mean == 3.0
    assert window.fetches_running is not None


def test_an_engine_without_counters_has_none() -> None:
    """Its plugin is of an older version: nothing is taken for 0."""
    (window,) = reported(load(counters={}), load(counters={}))
    assert (window.preemptions, window.cache_queries, window.transfers) == (None, None, None)


def test_a_restart_is_seen_in_what_a_plugin_reports() -> None:
    """Its counters fall: nothing of before is compared."""
    (window,) = reported(load(), load(counters={"prefix_queries": 10.0}))
    assert window.is_restarted
    assert window.cache_queries is None


def test_a_page_lacks_what_the_plugin_reports() -> None:
    """What the page has is taken from it; what it lacks from a report of the same time."""
    page = EngineWindow(0, 80.0, 110.0, preemptions=1.0, transfers=TransferWindow(count=5.0, failed=0.0))
    mine = reported(load(), load(counters={"preemptions": 9.0, "failed_handshakes": 3.0, "prefix_queries": 990.0}))
    (window,) = joined_windows([page], mine)
    assert (window.preemptions, window.cache_queries) == (1.0, 90.0)
    assert window.transfers == TransferWindow(count=5.0, failed=0.0, failed_handshakes=2.0)
    (late,) = joined_windows([replace(page, end_s=140.0)], mine)
    assert late.cache_queries is None
    assert joined_windows([], mine) == mine
    assert joined_windows([replace(page, end_s=50.0)], mine) == mine
    assert joined_windows([page], []) == (page,)
