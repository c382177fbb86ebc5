"""The traffic of the truth table: fits the engine, repeats, and means the same to both sides."""

from __future__ import annotations

import pytest

from bench.truth.__main__ import MIN_WORKLOADS, traffic
from bench.truth.playing import play_simulated, play_simulated_fleet
from bench.truth.workloads import GENERATED, MAX_ANSWER, MAX_PROMPT, Workload, at_load, token_ids
from simulator.profile import Profile
from simulator.workload import BLOCK_TOKENS

ENGINE = Profile(
    step_table=((1, 0.02), (16, 0.028), (128, 0.08), (512, 0.32)),
    prefill_tokens_per_s=1_600,
    max_num_seqs=16,
    max_num_batched_tokens=512,
    kv_capacity_tokens=383 * 32,
    block_size=32,
)


def test_there_are_enough_without_any_recording() -> None:
    """The targets can be met where no trace is at hand."""
    assert len(GENERATED) >= MIN_WORKLOADS


@pytest.mark.parametrize("workload", GENERATED, ids=lambda one: one.name)
def test_a_workload_fits_the_engine(workload: Workload) -> None:
    """Every prompt and answer has its place, blocks are full ones, and the same seed gives the same trace."""
    trace = workload.build(30, 1)
    assert trace == workload.build(30, 1)
    for arrival in trace.arrivals:
        assert 1 <= arrival.prompt_tokens <= MAX_PROMPT
        assert 1 <= arrival.output_tokens <= MAX_ANSWER
        assert arrival.prompt_tokens + arrival.output_tokens < 2_048
        assert len(arrival.blocks) == arrival.prompt_tokens // BLOCK_TOKENS


def test_equal_blocks_are_equal_tokens() -> None:
    """Two prompts share as many leading tokens as their leading blocks say; another seed shares nothing."""
    shared = next(one for one in GENERATED if one.name == "shared prefixes")
    arrivals = shared.build(40, 0).arrivals
    prompts = [token_ids(arrival, number, 0) for number, arrival in enumerate(arrivals)]
    assert [len(prompt) for prompt in prompts] == [arrival.prompt_tokens for arrival in arrivals]
    for one, prompt in zip(arrivals, prompts, strict=True):
        for other, beside in zip(arrivals, prompts, strict=True):
            equal = sum(a == b for a, b in zip(one.blocks, other.blocks, strict=False))
            assert prompt[: equal * BLOCK_TOKENS] == beside[: equal * BLOCK_TOKENS]
    assert token_ids(arrivals[0], 0, 1)[:BLOCK_TOKENS] != prompts[0][:BLOCK_TOKENS]


def test_parts_of_a_mixture_share_nothing() -> None:
    """Long prompts, decodes and short ones stand side by side."""
    mixture = next(one for one in GENERATED if one.name == "mixture").build(40, 0)
    blocks = [block for arrival in mixture.arrivals for block in arrival.blocks]
    assert len(blocks) == len(set(blocks))


def test_a_load_is_a_share_of_what_the_engine_sustains() -> None:
    """At twice the load the same requests come in half the time; without a load all at once."""
    trace = GENERATED[0].build(30, 0)
    assert at_load(trace, 0.5, 10.0).length_s == pytest.approx(20.0)
    assert at_load(trace, 1.0, 10.0).length_s == pytest.approx(10.0)
    assert at_load(trace, None, 10.0).length_s == 0.0


def test_the_simulated_side_plays_them() -> None:
    """One engine and a fleet answer everything; the crowd that comes at once is preempted."""
    burst = next(one for one in GENERATED if one.name == "crowded")
    assert play_simulated(traffic(burst, ENGINE, 5.0, 0), ENGINE).figures["preemptions"] > 0
    trace = traffic(GENERATED[0], ENGINE, 5.0, 0)
    assert play_simulated_fleet(trace, ENGINE, 2).figures["throughput"] > 0
