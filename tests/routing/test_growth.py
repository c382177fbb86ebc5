"""How prefill grows with context, learned."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.growth import CONTEXT_SCALE_TOKENS, LEAST_TOKENS, SHORTEST_SCALE_TOKENS, Growth


def taught(
    scale_tokens: float, *, longest: float, count: int = 200, wait_s: float = 0.0, pace_s: float = 1e-4
) -> Growth:
    """Prompts of all lengths, some of them mostly warm, on an engine whose L0 is `scale_tokens`."""
    draw, growth = random.Random(1), Growth()
    for _ in range(count):
        cold = draw.uniform(500, longest)
        context = cold + draw.choice((0, 0, 20_000, 60_000))
        seconds = pace_s * cold * (1 + (context - cold / 2) / scale_tokens)
        growth.observe(cold, context, 0.01 + seconds + draw.uniform(0, wait_s))
    return growth


@pytest.mark.parametrize("pace_s", [1e-5, 1e-3])
@pytest.mark.parametrize("scale_tokens", [20_000.0, 100_000.0, 300_000.0])
def test_the_true_growth_is_found(scale_tokens: float, pace_s: float) -> None:
    """Whatever the engines' speed."""
    growth = taught(scale_tokens, longest=100_000, pace_s=pace_s)
    assert 1 / growth.per_token == pytest.approx(scale_tokens, rel=0.25)


def test_prefill_that_does_not_grow_is_seen_soon() -> None:
    """Five long prompts are enough to halve what was believed of growth, two hundred to forget it."""
    assert taught(1e15, longest=150_000, count=5).per_token < 0.5 / CONTEXT_SCALE_TOKENS
    assert taught(1e15, longest=150_000).per_token < 0.05 / CONTEXT_SCALE_TOKENS


def test_what_all_wait_alike_does_not_look_like_growth() -> None:
    """A step in flight before everybody makes growth look smaller, never larger."""
    waited, alone = taught(50_000, longest=60_000, wait_s=0.5), taught(50_000, longest=60_000)
    assert 1 / waited.per_token == pytest.approx(50_000, rel=0.3)
    assert waited.per_token <= alone.per_token * 1.05


def test_short_prompts_say_nothing_of_it() -> None:
    """What they take is the step's time, not their own."""
    growth = Growth()
    for _ in range(100):
        growth.observe(LEAST_TOKENS - 1, 100_000, 30.0)
    assert growth.per_token == 1 / CONTEXT_SCALE_TOKENS


def test_one_pause_changes_little() -> None:
    """An engine that stood still for a minute once has not learned to grow."""
    growth = taught(100_000, longest=60_000)
    growth.observe(50_000, 50_000, 600.0)
    assert 1 / growth.per_token == pytest.approx(100_000, rel=0.5)


@given(st.lists(st.tuples(st.floats(0, 1e7), st.floats(0, 1e7), st.floats(0, 1e5)), max_size=50))
def test_it_stays_within_its_bounds(seen: list[tuple[float, float, float]]) -> None:
    """Whatever is seen."""
    growth = Growth()
    for cold, more, seconds in seen:
        growth.observe(cold, cold + more, seconds)
        assert 0 <= growth.per_token <= 1 / SHORTEST_SCALE_TOKENS
