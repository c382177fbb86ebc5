"""What prompts and answers are usually like: means that begin at once and forget."""

import pytest

from routing.usual import MEMORY, Usual


def test_nothing_is_known_at_first() -> None:
    """Nor from prompts that are all warm."""
    usual = Usual(step_s=0.01)
    usual.asked(0.0)
    assert usual.prefill_s == usual.stream_s == 0.0


def test_the_first_count_in_full() -> None:
    """Prefill in seconds, answers by their tokens in steps of an undisturbed engine."""
    usual = Usual(step_s=0.01)
    for own_s, tokens in ((0.2, 10), (0.4, 30)):
        usual.asked(own_s)
        usual.answered(tokens)
    assert usual.prefill_s == pytest.approx(0.3)
    assert usual.stream_s == pytest.approx(0.2)


def test_an_answer_of_one_token_is_a_stream_of_one_step() -> None:
    """So that nothing is ever divided by nothing."""
    usual = Usual(step_s=0.01)
    usual.answered(0)
    assert usual.stream_s == pytest.approx(0.01)


def test_what_was_is_forgotten() -> None:
    """After some memories nothing is left of it."""
    usual = Usual(step_s=0.01)
    for own_s in [9.0] * 10 + [1.0] * int(8 * MEMORY):
        usual.asked(own_s)
    assert usual.prefill_s == pytest.approx(1.0, rel=0.01)
