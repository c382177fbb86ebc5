"""Latency is shown by model, tier and pool, in fixed buckets and a bounded number of series."""

from gateway.observe.metrics.latency import OTHERS, LatencyCounters
from gateway.observe.metrics.request_groups import single_group
from gateway.pipeline.record import Outcome
from routing.request import Usage
from tests.gateway.samples import a_request, an_outcome


def add(counts: LatencyCounters, outcome: Outcome, model: str, pool: str) -> None:
    single_group(outcome, pool, counts.of(model, outcome.tier, pool))


def test_times_are_kept_apart_by_model_tier_and_pool() -> None:
    """Each request in the histograms of its own."""
    counts = LatencyCounters()
    for tier, pool, ttft_s in (("gold", "h100", 0.1), ("gold", "l40s", 0.2), ("bronze", "h100", 0.4)):
        add(counts, an_outcome(tier=tier, ttft_s=ttft_s, queue_wait_s=0.02), "tiny", pool)
    assert {key: held.ttft_s.total for key, held in counts.by_key.items()} == {
        ("tiny", "gold", "h100"): 0.1,
        ("tiny", "gold", "l40s"): 0.2,
        ("tiny", "bronze", "h100"): 0.4,
    }
    assert [held.queue_wait_s.total for held in counts.by_key.values()] == [0.02] * 3


def test_time_per_token_is_of_streams_only() -> None:
    """A response in one piece has no pace, nor has one of a single token."""
    counts = LatencyCounters()
    add(counts, an_outcome(request=a_request(stream=False)), "tiny", "p")
    add(counts, an_outcome(usage=Usage(100, 1)), "tiny", "p")
    assert sum(counts.by_key["tiny", "default", "p"].tpot_s.counts) == 0


def test_combinations_beyond_the_bound_are_other() -> None:
    """Those that were there keep theirs."""
    counts = LatencyCounters(max_keys=2)
    for model in ("a", "b", "c", "d", "a"):
        add(counts, an_outcome(), model, "p")
    sizes = {key: sum(held.duration_s.counts) for key, held in counts.by_key.items()}
    assert sizes == {("a", "default", "p"): 2, ("b", "default", "p"): 1, OTHERS: 2}


def test_the_families_have_the_edges_of_vllm() -> None:
    """One histogram family each, by three labels."""
    counts = LatencyCounters()
    add(counts, an_outcome(ttft_s=0.3), "tiny", "p")
    families = {family.name: family for family in counts.families()}
    assert sorted(families) == [
        "hearth_queue_wait_seconds",
        "hearth_request_duration_seconds",
        "hearth_time_per_output_token_seconds",
        "hearth_time_to_first_token_seconds",
    ]
    buckets = {
        sample.labels["le"]: sample.value
        for sample in families["hearth_time_to_first_token_seconds"].samples
        if "le" in sample.labels
    }
    assert (buckets["0.25"], buckets["0.5"], buckets["+Inf"]) == (0, 1, 1)
