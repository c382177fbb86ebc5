"""Prompts for the tests of the core, cut so small that a few letters make several blocks of growing size."""

from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from routing.blocks import Prompt

ENDS = (1, 2, 3, 4, 6, 8, 10, 14, 18, 22, 30, 38)
"""Sizes of prompts up to the end of each block, growing as real ones do."""


def prompt_of(letters: str) -> Prompt:
    """A prompt with one block per letter; equal beginnings have equal blocks."""
    blocks = []
    parent = 0
    for letter in letters[: len(ENDS)]:
        parent = xxh3_64_intdigest(letter.encode(), parent)
        blocks.append(parent)
    return Prompt(tuple(blocks), ENDS, ENDS[len(blocks) - 1] if blocks else 0)


# Few letters, so that prompts often begin alike.
prompts = st.text("ab", max_size=len(ENDS)).map(prompt_of)
