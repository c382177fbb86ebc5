"""The tokenizer: nothing is lost, and what is appended changes nothing before it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simulator.tokens import MESSAGE_END, MESSAGE_START, decode, encode, pack


@given(st.text())
def test_a_text_comes_back(text: str) -> None:
    """Whatever its length and whatever it is written in."""
    encoded = text.encode()
    assert decode(encode(encoded)) == text
    assert len(encode(encoded)) == -(-len(encoded) // 4)


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_complete_tokens_stay_when_more_is_appended(before: bytes, after: bytes) -> None:
    """Only the last, shorter token of a text may change."""
    complete = len(before) // 4
    assert encode(before + after)[:complete] == encode(before)[:complete]


def test_special_tokens_are_like_no_text() -> None:
    """Their words in a text are text."""
    assert decode([MESSAGE_START, MESSAGE_END]) == "<|im_start|><|im_end|>"
    assert MESSAGE_START not in encode(b"<|im_start|>")


def test_any_id_can_be_read() -> None:
    """A client may send ids that no text has."""
    assert decode([1, 1 << 62]).startswith("\x01\x00\x00\x00")


def test_every_token_has_its_own_bytes_for_hashing() -> None:
    """Equal lists pack alike, others do not."""
    assert pack([1, 2]) != pack([1]) + b"\x02"
    assert len(pack([1, 1 << 62])) == 16
