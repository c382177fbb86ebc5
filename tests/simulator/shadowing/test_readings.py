"""What vLLM's metrics say of a stretch of time."""

import math

import pytest

from simulator.shadowing.readings import Seen, difference, growth_of, in_buckets, median_of, read_samples

PAGE = """\
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0"} %d
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0"} %d
# TYPE vllm:request_success counter
vllm:request_success_total{engine="0",finished_reason="stop"} %d
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{engine="0"} %d
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{engine="0"} %d
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} %d
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5"} %d
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} %d
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{engine="0",num_gpu_blocks="1000",block_size="16"} 1
# TYPE vllm:request_prefill_time_seconds histogram
vllm:request_prefill_time_seconds_sum{engine="0"} %d
vllm:request_prefill_time_seconds_count{engine="0"} 4
vllm:request_prefill_time_seconds_bucket{engine="0",le="+Inf"} 4
"""

BEFORE = PAGE % (100, 10, 1, 100, 0, 0, 1, 1, 0)
AFTER = PAGE % (1100, 50, 5, 1100, 400, 0, 5, 5, 2)


def test_metrics_become_what_was_seen() -> None:
    """Growth between two readings; the median within its bucket; speeds and sizes of the engine."""
    before = read_samples([BEFORE])
    seen = difference(before, read_samples([AFTER]))
    assert (seen.requests, seen.prompt_tokens, seen.output_tokens) == (4, 1000, 40)
    assert seen.hit_ratio == pytest.approx(0.4)
    assert seen.ttft_p50_s == pytest.approx(0.3)
    assert seen.prefill_tokens_per_s == pytest.approx(300)
    assert seen.ttft == ((0.1, 0.0), (0.5, 4.0), (math.inf, 4.0))
    assert difference(before, before) == Seen(kv_capacity_tokens=16_000, block_size=16)


def test_a_pod_that_was_read_once_does_not_count() -> None:
    """Its counters would be taken for what happened meanwhile."""
    seen = growth_of({"a": BEFORE}, {"a": AFTER, "b": AFTER})
    assert seen.requests == 4
    assert growth_of({}, {"b": AFTER}).requests == 0


def test_values_are_counted_in_another_histograms_buckets() -> None:
    """A value at a bound is in its bucket, as Prometheus counts it."""
    like = ((0.1, 9.0), (0.5, 9.0), (math.inf, 9.0))
    found = in_buckets([0.05, 0.1, 0.2, 0.5, 7.0], like)
    assert found == ((0.1, 2.0), (0.5, 4.0), (math.inf, 5.0))
    assert median_of(found) == pytest.approx(0.2)
    assert median_of(()) is None
    assert median_of(((0.1, 0.0), (math.inf, 3.0))) == 0.1
