"""Generated conversations look like the recorded ones they are shaped after, and are the same for the same seed."""

from collections import Counter

import pytest

from simulator.trace_figures import trace_figures
from simulator.workload import AGENT, BLOCK_TOKENS, CHAT, SHAPES, LogNormal, generate


def test_a_seed_decides_everything() -> None:
    """The same seed gives the same trace, another one another; a longer trace begins like a shorter one."""
    assert generate(CHAT, 200, seed=3) == generate(CHAT, 200, seed=3)
    assert generate(CHAT, 200, seed=3) != generate(CHAT, 200, seed=4)
    assert generate(CHAT, 300, seed=3).arrivals[:200] == generate(CHAT, 200, seed=3).arrivals


def test_chat_has_the_published_figures_of_the_mooncake_trace() -> None:
    """Within a fifth: prompt and answer lengths, request rate; reuse within 0.08 of 0.373; 4 % system prompt."""
    trace = generate(CHAT, 5_000, seed=0)
    figures = trace_figures(trace)
    assert figures.rate_per_s == pytest.approx(3.4, rel=0.2)
    assert figures.prompt_tokens.p50 == pytest.approx(6_909, rel=0.2)
    assert figures.prompt_tokens.p90 == pytest.approx(27_367, rel=0.2)
    assert figures.prompt_tokens.p99 == pytest.approx(85_400, rel=0.2)
    assert figures.output_tokens.p50 == pytest.approx(350, rel=0.2)
    assert figures.output_tokens.p90 == pytest.approx(597, rel=0.2)
    assert figures.output_tokens.p99 == pytest.approx(1_119, rel=0.2)
    assert figures.reuse == pytest.approx(0.373, abs=0.08)
    system = sum(one.runs[0][1] * BLOCK_TOKENS for one in trace.arrivals)
    assert system / sum(one.prompt_tokens for one in trace.arrivals) == pytest.approx(0.04, abs=0.01)
    assert len({one.runs[0][0] for one in trace.arrivals}) == 1


def test_agent_has_the_published_figures_of_claude_code() -> None:
    """Within a third: prompt and answer lengths, turns; reuse within 0.03 of 0.963."""
    figures = trace_figures(generate(AGENT, 3_000, seed=1))
    assert figures.prompt_tokens.p50 == pytest.approx(100_000, rel=1 / 3)
    assert figures.prompt_tokens.p90 == pytest.approx(209_000, rel=1 / 3)
    assert figures.output_tokens.p50 == pytest.approx(216, rel=1 / 3)
    assert figures.output_tokens.p90 == pytest.approx(845, rel=1 / 3)
    assert figures.turns.p50 == pytest.approx(46, rel=1 / 3)
    assert figures.reuse == pytest.approx(0.963, abs=0.03)


@pytest.mark.parametrize("name", SHAPES)
def test_a_conversation_only_grows_or_is_rewritten(name: str) -> None:
    """Every prompt of a conversation begins with the one before it, or else only with its assistant's system prompt."""
    shape = SHAPES[name]
    last: dict[str, tuple[int, ...]] = {}
    rewritten = 0
    for one in generate(shape, 800, seed=5).arrivals:
        before, blocks = last.get(one.session or "", ()), one.blocks
        assert len(blocks) == one.prompt_tokens // BLOCK_TOKENS
        assert one.prompt_tokens <= shape.max_prompt_tokens
        if blocks[: len(before)] != before:
            rewritten += 1
            assert blocks[: one.runs[0][1]] == before[: one.runs[0][1]]
        last[one.session or ""] = blocks
    assert (rewritten > 0) == (shape.rewrite_share > 0)


def test_a_turn_sends_the_answer_before_and_something_new() -> None:
    """So an engine that kept the answer would find it, and never the whole prompt."""
    last: dict[str | None, int] = {}
    grown = 0
    for one in generate(SHAPES["teams"], 600, seed=7).arrivals:
        if one.session in last:
            assert one.prompt_tokens > last[one.session] or one.prompt_tokens == SHAPES["teams"].max_prompt_tokens
            grown += 1
        last[one.session] = one.prompt_tokens + one.output_tokens
    assert grown > 200


def test_assistants_share_their_system_prompts_and_nothing_else() -> None:
    """Two conversations have blocks in common exactly where they talk to the same assistant."""
    trace = generate(SHAPES["teams"], 600, seed=2)
    assistants = Counter(one.runs[0][0] for one in trace.arrivals)
    assert 6 <= len(assistants) <= 12
    assert assistants.most_common()[0][1] > 2 * assistants.most_common()[-1][1]
    own: dict[int, str | None] = {}
    for one in trace.arrivals:
        for block in one.blocks[one.runs[0][1] :]:
            assert own.setdefault(block, one.session) == one.session


def test_it_starts_in_the_middle_of_things() -> None:
    """From its first minute the rate is the shape's, not that of an empty house filling up."""
    trace = generate(SHAPES["teams"], 1_500, seed=0)
    half = trace.length_s / 2
    early = sum(one.at_s < half for one in trace.arrivals)
    assert early == pytest.approx(750, rel=0.15)


def test_a_lognormal_is_given_by_median_and_ninetieth_percentile() -> None:
    """Its mean follows from the two."""
    assert LogNormal(100, 100).mean == pytest.approx(100)
    assert LogNormal(100, 400).mean == pytest.approx(100 * 1.795, rel=0.01)
