"""Prompts as chains of block hashes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from routing.blocks import (
    BLOCK_ENDS,
    BLOCKS_PER_DOUBLING,
    EMPTY_PROMPT,
    MAX_BLOCK_BYTES,
    MAX_BLOCKS,
    OPENING_BLOCKS,
    SMALLEST_BLOCK,
    cut_prompt,
    hash_seed,
)

# Long texts cheaply: a few bytes, many times over.
texts = st.builds(lambda piece, times: piece * times, st.binary(max_size=40), st.integers(0, 600)) | st.binary()


@given(texts, texts, st.integers(0, 2**64 - 1))
def test_extending_is_cutting_the_whole(text: bytes, more: bytes, seed: int) -> None:
    """Hashing goes on where it stopped: the same blocks, size and tail as when all was there at once."""
    assert cut_prompt(text, seed).extended(more) == cut_prompt(text + more, seed)
    assert cut_prompt(b"", seed).extended(text) == cut_prompt(text, seed)


@given(texts, texts)
def test_a_block_never_depends_on_what_follows(text: bytes, more: bytes) -> None:
    """A longer prompt has the shorter one's blocks first, whatever the length: blocks are cut at fixed places."""
    short, long = cut_prompt(text, 7), cut_prompt(text + more, 7)
    assert long.blocks[: len(short.blocks)] == short.blocks


@given(texts.filter(bool), st.data())
def test_a_changed_byte_changes_every_block_from_there_on(text: bytes, data: st.DataObject) -> None:
    """Blocks before the change stay, its own and all later ones differ: equal hash means equal prefix."""
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]
    before, after = cut_prompt(text, 0), cut_prompt(changed, 0)
    first = sum(end <= at for end in BLOCK_ENDS[: len(before.blocks)])
    assert before.blocks[:first] == after.blocks[:first]
    assert not set(before.blocks[first:]) & set(after.blocks[first:])


@given(texts)
def test_blocks_and_tail_make_up_the_prompt(text: bytes) -> None:
    """Full blocks cover what they say they cover; the tail is what is left, less than a block of it."""
    prompt = cut_prompt(text, 0)
    assert prompt.size == len(text)
    assert prompt.tail == text[prompt.covered :]
    assert prompt.covered == (BLOCK_ENDS[len(prompt.blocks) - 1] if prompt.blocks else 0)
    assert len(text) < BLOCK_ENDS[len(prompt.blocks)]


@given(texts.filter(lambda text: len(text) >= SMALLEST_BLOCK), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_seeds_separate(text: bytes, one: int, other: int) -> None:
    """Equal texts under different seeds have no block in common."""
    shared = set(cut_prompt(text, one).blocks) & set(cut_prompt(text, other).blocks)
    assert bool(shared) == (one == other)


parts = st.lists(st.binary(max_size=12), max_size=4)


@given(parts, parts)
def test_a_seed_is_of_its_parts(one: list[bytes], other: list[bytes]) -> None:
    """Different lists of parts have different seeds, also where their bytes run together to the same."""
    assert (hash_seed(*one) == hash_seed(*other)) == (one == other)


def test_seeds_are_the_same_in_every_process() -> None:
    """Gateways share what they learn, so hashes may not depend on a process's own randomness."""
    assert hash_seed(b"model", b"") == 14819935466007438517
    text = b"warm" * SMALLEST_BLOCK
    assert cut_prompt(text, 1).blocks[0] == xxh3_64_intdigest(text[: OPENING_BLOCKS[0]], 1)


@pytest.mark.parametrize("index", [len(OPENING_BLOCKS), 4, 31, 32, 100, 500, MAX_BLOCKS - 1])
def test_blocks_grow_with_depth(index: int) -> None:
    """From the smallest to the largest, and a cut inside a block loses little of what stands before it."""
    end = BLOCK_ENDS[index]
    size = end - (BLOCK_ENDS[index - 1] if index else 0)
    assert SMALLEST_BLOCK <= size <= MAX_BLOCK_BYTES
    assert size & (size - 1) == 0
    assert size == SMALLEST_BLOCK or size * BLOCKS_PER_DOUBLING <= end


def test_a_first_question_with_its_answer_fills_a_block() -> None:
    """However short a conversation begins, its second turn has something to be known again by."""
    opening = cut_prompt(b"What is the capital of France?", 0)
    assert not opening.blocks
    assert len(opening.extended(b"The capital of France is Paris.").blocks) == 1
    assert sum(OPENING_BLOCKS) == SMALLEST_BLOCK


def test_a_million_tokens_are_a_thousand_blocks() -> None:
    """4 MB of text are cut into about a thousand blocks, 32 KB into about a hundred."""
    assert sum(end <= 4 << 20 for end in BLOCK_ENDS) < 1200
    assert sum(end <= 32 << 10 for end in BLOCK_ENDS) < 110


def test_nothing_has_no_blocks() -> None:
    """The empty prompt covers nothing and can be gone on from."""
    assert cut_prompt(b"", 0) == EMPTY_PROMPT
    assert EMPTY_PROMPT.covered == 0
    assert EMPTY_PROMPT.extended(b"x" * SMALLEST_BLOCK).blocks == cut_prompt(b"x" * SMALLEST_BLOCK, 0).blocks


def test_a_prompt_beyond_the_table_is_still_a_prompt() -> None:
    """What is longer than the table of ends keeps its first blocks; the rest is tail."""
    text = bytes(BLOCK_ENDS[-1] + 10)
    prompt = cut_prompt(text, 0)
    assert len(prompt.blocks) == MAX_BLOCKS
    assert prompt.tail == bytes(10)
    assert prompt.extended(b"more").tail == bytes(10) + b"more"
