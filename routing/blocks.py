"""A prompt as a chain of block hashes: equal hash = equal prefix up to that block's end.

Hashes bytes, so it is independent of the tokenizer. Blocks grow with depth, so that a short prompt is cut
finely and a million tokens stay a thousand blocks; a cut that falls inside a block costs at most a twelfth of the
prompt before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from io import BytesIO
from itertools import accumulate
from struct import Struct as Layout
from struct import pack, unpack_from

from msgspec import Struct
from xxhash import xxh3_64_intdigest

OPENING_BLOCKS = (32, 32, 64)
"""Bytes. A first question and its answer may fill no more: without these its second turn would match nothing."""

SMALLEST_BLOCK = 128
"""Bytes, behind the opening. About two engine blocks of 16 tokens: finer would hardly change where a request goes."""

MAX_BLOCK_BYTES = 4096
"""Bytes. About 1,000 tokens: 48 KB into a prompt a cut inside a block loses a twelfth of it at most."""

BLOCKS_PER_DOUBLING = 12
"""How often a prompt is cut while its length doubles; bounds what a cut inside a block can lose."""

MAX_BLOCKS = 1 << 14
"""64 MB of prompt: beyond every body limit, so the table of ends is finite."""


def _sizes() -> tuple[int, ...]:
    sizes = list(OPENING_BLOCKS)
    size, reached = SMALLEST_BLOCK, sum(OPENING_BLOCKS)
    for _ in range(MAX_BLOCKS - len(OPENING_BLOCKS)):
        sizes.append(size)
        reached += size
        if size < MAX_BLOCK_BYTES and reached >= 2 * size * BLOCKS_PER_DOUBLING:
            size *= 2
    return tuple(sizes)


BLOCK_SIZES = _sizes()

BLOCK_ENDS = tuple(accumulate(BLOCK_SIZES))
"""BLOCK_ENDS[i] = how many bytes of prompt the first i + 1 blocks cover."""


class Prompt(Struct, frozen=True, gc=False):
    """The canonical prompt as the router sees it.

    `blocks` are chained hashes of the full blocks, `ends[i]` the size of the prompt up to the end of block i (`ends`
    may be longer than `blocks`), `size` the whole prompt, both in bytes (a recorded trace counts in tokens). `tail` are
    the bytes after the last full block: what is needed to go on hashing when the answer is known.
    """

    blocks: tuple[int, ...]
    ends: Sequence[int]
    size: int
    seed: int = 0
    tail: bytes = b""

    @property
    def covered(self) -> int:
        """How much of the prompt its full blocks cover, in the unit of `size`."""
        return self.ends[len(self.blocks) - 1] if self.blocks else 0

    @property
    def last_block(self) -> int | None:
        """Its last full block; None where it has none."""
        return self.blocks[-1] if self.blocks else None

    def extended(self, text: bytes) -> Prompt:
        """This prompt with `text` behind it, as the next turn of its conversation will send it."""
        parent = self.blocks[-1] if self.blocks else self.seed
        fresh, tail = _chain(self.tail + text, len(self.blocks), self.covered, parent)
        return Prompt(self.blocks + fresh, self.ends, self.size + len(text), self.seed, tail)


BLOCK_BYTES = 8
"""Of one packed block: a 64-bit integer, little-endian."""

BLOCK_AT = Layout("<Q").unpack_from
"""Unpack one block: of packed blocks and an offset in bytes, as a tuple of one."""


def pack_blocks(blocks: Sequence[int]) -> bytes:
    """Pack blocks, `BLOCK_BYTES` each."""
    return pack(f"<{len(blocks)}Q", *blocks)


def unpack_blocks(packed: bytes) -> tuple[int, ...]:
    """Unpack what `pack_blocks` returned; an incomplete block at the end is left out."""
    return unpack_from(f"<{len(packed) // BLOCK_BYTES}Q", packed)


def packed_block(packed: bytes, number: int) -> int:
    """The block at a position of packed blocks."""
    block: int = BLOCK_AT(packed, BLOCK_BYTES * number)[0]
    return block


class PackedPrompt(Struct, frozen=True, gc=False):
    """A prompt as another gateway sends it. Its blocks are unpacked only where a prompt that shares them is looked up.

    `packed` are the blocks by `pack_blocks`, `ends` and `size` those of `Prompt`.
    """

    packed: bytes
    ends: Sequence[int]
    size: int

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks of the prompt."""
        return unpack_blocks(self.packed)

    @property
    def covered(self) -> int:
        """How much of the prompt its full blocks cover, in the unit of `size`."""
        return self.ends[len(self.packed) // BLOCK_BYTES - 1] if self.packed else 0

    @property
    def last_block(self) -> int | None:
        """Its last full block; None where it has none."""
        return packed_block(self.packed, len(self.packed) // BLOCK_BYTES - 1) if self.packed else None


def pack_prompt(prompt: Prompt) -> PackedPrompt:
    """Pack a prompt, without what only its own gateway needs."""
    return PackedPrompt(pack_blocks(prompt.blocks), prompt.ends, prompt.size)


EMPTY_PROMPT = Prompt((), BLOCK_ENDS, 0)


def cut_prompt(canonical: bytes, seed: int) -> Prompt:
    """Cut canonical prompt bytes into blocks and hash them in a chain that starts from `seed`."""
    blocks, tail = _chain(canonical, 0, 0, seed)
    return Prompt(blocks, BLOCK_ENDS, len(canonical), seed, tail)


def _chain(text: bytes, first_block: int, start: int, parent: int) -> tuple[tuple[int, ...], bytes]:
    """Hashes of the full blocks in `text`, and the bytes behind them.

    `text` begins at byte `start` of the prompt, where block `first_block` does.
    """
    read = BytesIO(text).read
    last_block = bisect_right(BLOCK_ENDS, start + len(text))
    sizes = BLOCK_SIZES[first_block:last_block]
    return tuple([parent := xxh3_64_intdigest(read(size), parent) for size in sizes]), read()


def hash_seed(*parts: bytes) -> int:
    """One seed from what makes equal prompts different on an engine: model, adapter, cache salt, tools.

    Each part is hashed with its length, so that ("ab", "c") and ("a", "bc") differ.
    """
    seed = 0
    for part in parts:
        seed = xxh3_64_intdigest(part, seed ^ len(part))
    return seed
