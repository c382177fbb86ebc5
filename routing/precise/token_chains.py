"""A prompt's tokens as a chain of hashes: equal hash = equal tokens, adapter and salt up to there, on whatever engine.

Our own chain, never an engine's: engines hash with seeds and algorithms of their own. Links are short, so that the ends
of blocks of any usual size are ends of links, and one chain serves engines whose blocks differ.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import gcd

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from routing.blocks import hash_seed

LINK_TOKENS = 16
"""The smallest block that engines use on accelerators; all others are multiples of it."""

BYTES_PER_TOKEN = 4


def pack_tokens(token_ids: Iterable[int]) -> bytes:
    """Pack token ids as four bytes each. Raises `OverflowError` or `TypeError` for an invalid token id."""
    return array("I", token_ids).tobytes()


def chain_root(adapter: str = "", salt: str = "") -> int:
    """Where a chain starts: what makes equal tokens different on an engine."""
    return hash_seed(adapter.encode(), salt.encode()) if adapter or salt else 0


def link_tokens_for(block_tokens: int) -> int:
    """How long links must be so that blocks of this size end where links end."""
    return gcd(LINK_TOKENS, block_tokens)


def chain_hashes(packed: bytes, link_tokens: int, parent: int) -> list[int]:
    """The hashes at the end of every full link, chained from `parent`."""
    step = link_tokens * BYTES_PER_TOKEN
    links: list[int] = []
    for start in range(0, len(packed) - step + 1, step):
        parent = xxh3_64_intdigest(packed[start : start + step], parent)
        links.append(parent)
    return links


class TokenPrompt(Struct, frozen=True, gc=False):
    """A prompt in tokens, packed, and the root of its chain."""

    packed: bytes
    root: int = 0

    @property
    def tokens(self) -> int:
        return len(self.packed) // BYTES_PER_TOKEN


class BlockHashes:
    """The hashes of a prompt at the ends of blocks, for any size of block; every chain is walked once."""

    __slots__ = ("_blocks", "_links", "_prompt")

    def __init__(self, prompt: TokenPrompt) -> None:
        self._prompt = prompt
        self._links: dict[int, list[int]] = {}
        self._blocks: dict[tuple[int, int], Sequence[int]] = {}

    @property
    def tokens(self) -> int:
        return self._prompt.tokens

    def of_blocks(self, block_tokens: int, link_tokens: int) -> Sequence[int]:
        """The hash at the end of each full block; blocks are whole numbers of links."""
        key = block_tokens, link_tokens
        ends = self._blocks.get(key)
        if ends is None:
            links = self._links.get(link_tokens)
            if links is None:
                links = self._links[link_tokens] = chain_hashes(self._prompt.packed, link_tokens, self._prompt.root)
            every = block_tokens // link_tokens
            ends = self._blocks[key] = links if every == 1 else links[every - 1 :: every]
        return ends


def shared_links(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading links two chains share. Chains that have parted never meet again."""
    shorter = min(len(one), len(other))
    return bisect_left(range(shorter), True, key=lambda position: one[position] != other[position])
