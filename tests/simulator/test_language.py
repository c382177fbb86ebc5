"""The model: the same words after the same words, wherever they were said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simulator.language import Speech, natural_tokens, state_of

states = st.integers(0, 2**32 - 1)


@given(states, st.integers(0, 50))
def test_another_goes_on_as_the_first_would_have(state: int, stated: int) -> None:
    """Whoever reads the beginning of an answer continues it word for word."""
    first = Speech(state)
    beginning = "".join(first.pieces(0, stated))
    second = Speech(state_of(beginning.encode(), state))
    assert second.pieces(0, 50) == first.pieces(stated, stated + 50)


@given(st.binary(), st.binary(), states)
def test_reading_in_pieces_is_reading_at_once(one: bytes, other: bytes, state: int) -> None:
    """How a text was cut leaves no trace."""
    assert state_of(one + other, state) == state_of(other, state_of(one, state))


@given(states)
def test_a_piece_is_one_token_of_plain_letters(state: int) -> None:
    """Four bytes each, so that the tokenizer cuts an answer as it was said."""
    for piece in Speech(state).pieces(0, 20):
        assert len(piece.encode()) == 4
        assert piece.strip().isalpha()


def test_different_prompts_get_different_answers() -> None:
    """A hundred prompts, a hundred answers, of many lengths."""
    beginnings = [state_of(f"prompt {number}".encode()) for number in range(100)]
    assert len({"".join(Speech(state).pieces(0, 4)) for state in beginnings}) == 100
    lengths = {natural_tokens(state, 10, 100) for state in beginnings}
    assert min(lengths) >= 10
    assert max(lengths) <= 100
    assert len(lengths) > 40


def test_a_fixed_text_is_reported_and_no_more() -> None:
    """A tool call or a JSON object, cut into tokens; its length is known."""
    speech = Speech(7, '{"a": 1}x')
    assert speech.pieces(0, 3) == ['{"a"', ": 1}", "x"]
    assert speech.length == 3
    assert Speech(7).length is None


def test_certainty_varies_and_is_a_logarithm() -> None:
    """Never above 0; some words are sure, some are not."""
    speech = Speech(3)
    sure = [speech.certainty(index) for index in range(100)]
    assert all(-4.0 <= each <= 0.0 for each in sure)
    assert max(sure) > -0.05
    assert min(sure) < -2.0
