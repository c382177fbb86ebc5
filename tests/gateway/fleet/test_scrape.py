"""A metrics page gives up the few lines that routing wants, however large or odd it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.scrape import MAX_ENGINES, MAX_SOURCES, EngineReading, MetricsPage, read_page

PAGE = b"""# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 3242.0
process_start_time_seconds 1.79518639817e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 1234.0
vllm:prompt_tokens_created{engine="0",model_name="tiny"} 1.79e+09
vllm:cache_config_info{_block_size_resolved="True",block_size="32",cache_dtype="auto",engine="0",\
kv_cache_size_tokens="16384",num_gpu_blocks="512"} 1.0
"""


def test_the_lines_that_matter_are_found() -> None:
    """One engine, and the time its process began."""
    reading = EngineReading(2.0, 1.0, 0.25, 16384, 32, 1234.0)
    assert read_page(PAGE) == MetricsPage({0: reading}, 1_795_186_398.17)


def test_every_rank_is_an_engine_of_its_own() -> None:
    """Several samples of one metric stand in consecutive lines, here in no order."""
    page = b'vllm:num_requests_running{engine="1",model_name="a"} 3\nvllm:num_requests_running{engine="0"} 4\n'
    assert read_page(page).engines == {0: EngineReading(running=4.0), 1: EngineReading(running=3.0)}


def test_several_names_of_one_model_are_summed() -> None:
    """An engine's requests are all its requests, whatever they call the model."""
    page = b"".join(
        b'vllm:num_requests_waiting{engine="0",model_name="%s"} %d\n' % pair for pair in ((b"a", 1), (b"b", 2))
    )
    assert read_page(page).engines == {0: EngineReading(waiting=3.0)}


def test_capacity_is_blocks_times_size_where_tokens_are_not_reported() -> None:
    """Older pods do not say kv_cache_size_tokens."""
    page = b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0\n'
    assert read_page(page).engines[0].kv_capacity_tokens == 1600
    page = b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="None"} 1.0\n'
    assert read_page(page).engines[0].kv_capacity_tokens is None


def test_label_values_may_hold_what_they_like() -> None:
    """Braces, commas and spaces in a model's name confuse nothing; a sample without labels is engine 0."""
    page = b'vllm:num_requests_running{model_name="a} 9,engine=\\"7\\"",engine="2"} 5\nvllm:num_requests_waiting 3\n'
    assert read_page(page).engines == {0: EngineReading(waiting=3.0), 2: EngineReading(running=5.0)}


@pytest.mark.parametrize(
    "page", [b"", b"\n", b"<html>", b"vllm:num_requests_running{", b"vllm:num_requests_running{} x"]
)
def test_a_page_without_them_says_nothing(page: bytes) -> None:
    """A pod that is not vLLM, or half a page, is no error."""
    assert read_page(page) == MetricsPage({}, None)


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-Inf", b"", b"-1", b"1e308"])
def test_values_that_are_no_counts_are_left_out(value: bytes) -> None:
    """Prometheus may write them; routing must not reckon with them, nor with a sum of two that has no end."""
    assert read_page(b'vllm:num_requests_running{engine="0"} %s\n' % value) == MetricsPage({}, None)


@given(st.binary(max_size=300), st.integers(0, len(PAGE)))
def test_no_page_is_an_error(garbage: bytes, at: int) -> None:
    """Garbage anywhere in a page is read as far as it can be."""
    read_page(PAGE[:at] + garbage + PAGE[at:])


def test_queried_and_found_tokens_of_a_store_are_read() -> None:
    """Counters of the connector's cache; an engine without one counts nothing."""
    page = b"""
vllm:external_prefix_cache_queries_total{engine="0",model_name="m"} 1500.0
vllm:external_prefix_cache_queries_created{engine="0",model_name="m"} 1.8e+09
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 1000.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
"""
    engines = read_page(page).engines
    assert (engines[0].store_asked, engines[0].store_found) == (1500.0, 1000.0)
    assert (engines[1].store_asked, engines[1].store_found) == (0.0, 0.0)


def test_what_engines_count_is_passed_on() -> None:
    """Sums and counts of times without their buckets, prompt tokens by source, several models together."""
    page = b"""
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3",model_name="m"} 4.0
vllm:request_queue_time_seconds_count{engine="0",model_name="m"} 5.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 1.5
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:num_preemptions_total{engine="0",model_name="n"} 1.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 70.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 30.0
vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} 1e+09
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 9.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 8.0
"""
    assert read_page(page).engines[0].counters == {
        "request_queue_time_seconds_count": 5.0,
        "request_queue_time_seconds_sum": 1.5,
        "num_preemptions_total": 3.0,
        "prompt_tokens_by_source_total local_compute": 70.0,
        "prompt_tokens_by_source_total external_kv_transfer": 30.0,
        "nixl_bytes_transferred_sum": 1e9,
        "spec_decode_num_accepted_tokens_total": 8.0,
    }


def test_a_page_cannot_make_sources_without_end() -> None:
    """More than eight are counted together: each is a series."""
    page = b"".join(b'vllm:prompt_tokens_by_source_total{engine="0",source="s%d"} 1\n' % number for number in range(50))
    counters = read_page(page).engines[0].counters
    assert len(counters) == MAX_SOURCES + 1
    assert sum(counters.values()) == 50


def test_a_page_cannot_make_engines_without_end() -> None:
    """Each would be an engine of the fleet, with its place in every table."""
    page = b"".join(b'vllm:num_requests_running{engine="%d"} 1\n' % rank for rank in range(MAX_ENGINES + 50))
    assert [*read_page(page).engines] == [*range(MAX_ENGINES)]
