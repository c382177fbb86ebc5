"""Texts stand for block ids: as long, as equal and as different."""

from hypothesis import given
from hypothesis import strategies as st

from simulator.prompt_text import block_text, prompt_text
from simulator.tokens import encode

ids = st.lists(st.integers(0, 1 << 60), max_size=6)


@given(ids, st.integers(0, 40))
def test_a_prompt_has_four_bytes_a_token(blocks: list[int], rest: int) -> None:
    """The simulated pods' tokenizer counts exactly what the trace says."""
    text = prompt_text(blocks, 16, 16 * len(blocks) + rest, "me")
    assert len(encode(text.encode())) == 16 * len(blocks) + rest


@given(ids, ids)
def test_prompts_are_equal_as_far_as_their_blocks_are(ours: list[int], theirs: list[int]) -> None:
    """The common prefix in text is the common prefix in ids, to the block."""
    one, other = prompt_text(ours, 16, 16 * len(ours), "a"), prompt_text(theirs, 16, 16 * len(theirs), "b")
    shared = next((at for at, (left, right) in enumerate(zip(ours, theirs, strict=False)) if left != right), None)
    shared = min(len(ours), len(theirs)) if shared is None else shared
    assert one[: shared * 64] == other[: shared * 64]
    assert (
        one[shared * 64 : (shared + 1) * 64] != other[shared * 64 : (shared + 1) * 64]
        or len(ours) == len(theirs) == shared
    )


def test_what_is_a_requests_own_is_exclusive() -> None:
    """The rest behind the blocks differs from request to request."""
    assert prompt_text((1,), 16, 32, "a")[:64] == prompt_text((1,), 16, 32, "b")[:64]
    assert prompt_text((1,), 16, 32, "a")[64:] != prompt_text((1,), 16, 32, "b")[64:]


def test_it_looks_like_words() -> None:
    """Lower-case letters and spaces: nothing that a template or a terminal could take for something else."""
    text = block_text(7, 512)
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyz ")
    assert 0.08 < text.count(" ") / len(text) < 0.3
