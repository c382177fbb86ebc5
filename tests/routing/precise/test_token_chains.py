"""Chains of tokens: equal hash, equal beginning, whatever the size of blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.precise.token_chains import (
    BlockHashes,
    TokenPrompt,
    chain_hashes,
    chain_root,
    link_tokens_for,
    pack_tokens,
)

tokens = st.lists(st.integers(0, 2), max_size=100)


@given(tokens, tokens, st.sampled_from([1, 4, 16]))
def test_links_are_equal_exactly_as_far_as_tokens_are(one: list[int], other: list[int], link: int) -> None:
    """Two chains part where the tokens part, and never meet again."""
    alike = 0
    while alike < min(len(one), len(other)) and one[alike] == other[alike]:
        alike += 1
    chains = [chain_hashes(pack_tokens(each), link, 0) for each in (one, other)]
    assert [len(chain) for chain in chains] == [len(one) // link, len(other) // link]
    same = [left == right for left, right in zip(*chains, strict=False)]
    assert same == [True] * (alike // link) + [False] * (len(same) - alike // link)


@given(tokens, st.integers(0, 5))
def test_a_chain_can_be_continued_anywhere(prompt: list[int], cut: int) -> None:
    """Hashing on from a link is hashing in one go: events tell a prompt in pieces."""
    complete = chain_hashes(pack_tokens(prompt), 4, chain_root("lora", "salt"))
    cut = min(cut, len(complete))
    parent = complete[cut - 1] if cut else chain_root("lora", "salt")
    assert complete[:cut] + chain_hashes(pack_tokens(prompt[4 * cut :]), 4, parent) == complete


def test_roots_distinguish_adapter_and_salt() -> None:
    """Neither can stand for the other, and none is none."""
    roots = [chain_root(), chain_root("a"), chain_root("", "a"), chain_root("a", "a"), chain_root("aa")]
    assert len(set(roots)) == 5
    assert chain_root() == 0


def test_ends_of_blocks_are_ends_of_links() -> None:
    """Blocks of 16, 32 and 48 share one chain; odd ones get shorter links."""
    prompt = TokenPrompt(pack_tokens(range(200)))
    ends = BlockHashes(prompt)
    assert (prompt.tokens, ends.tokens) == (200, 200)
    assert [link_tokens_for(block) for block in (16, 32, 48, 24, 7)] == [16, 16, 16, 8, 1]
    links = ends.of_blocks(16, 16)
    assert list(ends.of_blocks(32, 16)) == list(links[1::2])
    assert list(ends.of_blocks(48, 16)) == list(links[2::3])
    assert ends.of_blocks(48, 16) is ends.of_blocks(48, 16)
    assert len(ends.of_blocks(208, 16)) == 0


@pytest.mark.parametrize("odd", [[-1], [1 << 32], ["a"], [None]])
def test_what_is_no_token_id_is_rejected(odd: list[object]) -> None:
    """An engine's odd ids are an error of theirs, not a hash of ours."""
    with pytest.raises((OverflowError, TypeError)):
        pack_tokens(odd)  # type: ignore[arg-type]
