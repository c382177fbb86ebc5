"""Sizes in bytes become tokens: by a learned ratio, and exactly where an engine has counted before."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing import tokens
from routing.blocks import SMALLEST_BLOCK, cut_prompt
from routing.tokens import ExactCounter, PromptTokenEstimate, TokenCounter

TEXT = b"The quick brown fox jumps over the lazy dog. " * 200
MORE = b"And then it went home and slept. " * 100


def test_the_ratio_is_learned() -> None:
    """A model whose tokens are half as long as usual is measured rightly after a few answers."""
    rng = random.Random(2)
    counter = TokenCounter(4.0)
    for _ in range(60):
        size = rng.randrange(100, 40_000)
        counter.learn(cut_prompt(rng.randbytes(size), 0), round(20 + size / 2.0 * rng.uniform(0.95, 1.05)))
    assert counter.size_per_token == pytest.approx(2.0, rel=0.05)
    assert counter.tokens(10_000) == pytest.approx(5_020, rel=0.05)


def test_a_tenant_is_measured_by_its_own_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much another sends of another kind; a tenant that is new is measured like all. Memory is bounded."""
    monkeypatch.setattr(tokens, "MAX_TENANTS", 2)
    counter, prompt = TokenCounter(4.0), cut_prompt(b"x" * 40_000, 0)
    for _ in range(50):
        counter.learn(prompt, 10_008, "plain")
        counter.learn(prompt, 40_008, "odd")
        counter.learn(prompt, 40_008, "odd")
    assert counter.size_per_token_of("plain") == pytest.approx(4.0, rel=0.02)
    assert counter.size_per_token_of("odd") == pytest.approx(1.0, rel=0.02)
    assert counter.size_per_token_of("new") == counter.size_per_token_of(None) == counter.size_per_token < 2.0
    counter.learn(prompt, 10_008, "third")
    assert counter.size_per_token_of("plain") == counter.size_per_token


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=30), st.integers(0, 10**6))
def test_any_usage_leaves_sane_measures(seen: list[tuple[int, int]], size: int) -> None:
    """Whatever pods say, tokens are positive for something, zero for nothing, and more for more."""
    counter = TokenCounter(4.0)
    for at, (seen_size, reported) in enumerate(seen):
        counter.learn(cut_prompt(b"x" * (seen_size % 5000), at), reported)
    assert counter.tokens(0) == 0
    assert 0 < counter.tokens(size + 1) < counter.tokens(size + 100)
    assert 0 < counter.size_per_token < float("inf")


def test_a_counted_prompt_is_measured_exactly() -> None:
    """The next turn begins where an engine has counted: exact up to there, by the ratio beyond."""
    counter = TokenCounter(4.0)
    first = cut_prompt(TEXT, 0)
    counter.remember(first, 1234)
    ruler = PromptTokenEstimate(counter, first.extended(MORE))
    assert ruler.tokens(first.covered) == 1234
    assert ruler.tokens(first.size + 400) == pytest.approx(1234 + 100)
    assert ruler.tokens(first.covered / 2) == pytest.approx(1234 / 2, rel=0.05)


def test_the_longest_counted_prompt_counts() -> None:
    """Of all turns before, the last one is the nearest."""
    counter = TokenCounter(4.0)
    first = cut_prompt(TEXT, 0)
    second = first.extended(MORE)
    counter.remember(first, 1000)
    counter.remember(second, 2000)
    assert PromptTokenEstimate(counter, second.extended(MORE)).tokens(second.covered) == 2000
    assert PromptTokenEstimate(counter, first.extended(b"something else " * 100)).tokens(first.covered) == 1000


def test_a_turn_that_no_one_holds_any_more_is_no_measure() -> None:
    """Only what is warm somewhere needs exact counts; a turn that ended beyond it is not even looked for."""
    counter = TokenCounter(4.0)
    first = cut_prompt(TEXT, 0)
    second = first.extended(MORE)
    counter.remember(first, 1000)
    counter.remember(second, 2000)
    third = second.extended(MORE)
    assert PromptTokenEstimate(counter, third, held=second.covered).tokens(second.covered) == 2000
    assert PromptTokenEstimate(counter, third, held=second.covered - 1).tokens(first.covered) == 1000
    assert PromptTokenEstimate(counter, third, held=0).tokens(third.size) == counter.tokens(third.size)


def test_a_longer_prompt_is_no_measure_for_a_shorter_one() -> None:
    """A prompt that ends inside what was counted is not counted by it, though their last blocks are the same."""
    counter = TokenCounter(4.0)
    short = cut_prompt(b"a" * (SMALLEST_BLOCK + 6), 0)
    counter.remember(short.extended(b"b" * 20), 999)
    assert PromptTokenEstimate(counter, short).tokens(short.size) == counter.tokens(short.size)


sizes = st.lists(st.floats(0, 20_000), min_size=2, max_size=10).map(sorted)


@given(sizes, st.integers(0, 9000), st.integers(1, 5000))
def test_a_longer_stretch_is_never_fewer_tokens(sizes: list[float], counted: int, reported: int) -> None:
    """Measures only grow along a prompt, whether it was counted up to somewhere or not."""
    counter = TokenCounter(4.0)
    prompt = cut_prompt(TEXT + MORE, 0)
    counter.remember(cut_prompt((TEXT + MORE)[:counted], 0), reported)
    ruler = PromptTokenEstimate(counter, prompt)
    measures = [ruler.tokens(size) for size in sizes]
    assert measures == sorted(measures)
    assert all(measure >= 0 for measure in measures)


def test_other_prompts_are_not_touched() -> None:
    """What was counted under one seed says nothing of the same text under another."""
    counter = TokenCounter(4.0)
    counter.remember(cut_prompt(TEXT, 1), 5)
    assert PromptTokenEstimate(counter, cut_prompt(TEXT, 2)).tokens(1000) == counter.tokens(1000)


def test_nothing_is_remembered_of_less_than_a_block() -> None:
    """A prompt without a full block cannot be known again."""
    counter = TokenCounter(4.0)
    counter.learn(cut_prompt(b"Hi", 0), 3)
    assert counter.known_leaf(cut_prompt(b"Hi there", 0)) is None


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest counts are forgotten first; one that is told again counts as new."""
    monkeypatch.setattr(tokens, "MAX_LEAVES", 2)
    counter = TokenCounter(4.0)
    turns = [cut_prompt(TEXT, seed) for seed in range(3)]
    for seed in (0, 1, 0, 2):
        counter.remember(turns[seed], 100 + seed)
    assert [counter.known_leaf(prompt) is None for prompt in turns] == [False, True, False]


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_sizes_that_are_tokens_stay_what_they_are(size: int, reported: int) -> None:
    """A replay of a trace predicts what the trace says, whatever was learned before."""
    counter, prompt = ExactCounter(), cut_prompt(TEXT, 0)
    counter.learn(prompt, reported)
    counter.remember(prompt, reported)
    assert PromptTokenEstimate(counter, prompt).tokens(size) == size
