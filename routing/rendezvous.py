"""Where every gateway places a prompt that it does not know, while updates of others are missing.

By rendezvous hashing (Thaler and Ravishankar, 1998) all gateways pick the same engine for the same beginning of a
prompt, without an exchange. Engines go by name, since slots differ between gateways.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from routing.blocks import Prompt
from routing.pods import Engine


def unknown_beginning(prompt: Prompt, walked: Sequence[tuple[int, int]], engines: int) -> int | None:
    """Return the first block of a prompt that is not held by most of the engines.

    None where some of them hold more than the others, so that cached tokens decide, and where most hold all of it.
    `walked` as by `PrefixIndex.match`.
    """
    blocks, known = prompt.blocks, 0
    if walked:
        mask, size = walked[-1]
        if 2 * mask.bit_count() <= engines:
            return None
        known = bisect_right(prompt.ends, size, 0, len(blocks))
    return blocks[known] if known < len(blocks) else None


def rendezvous_position(block: int, engines: Sequence[Engine]) -> int:
    """Return the position of the engine that all gateways pick for prompts that begin with a block."""
    return max(range(len(engines)), key=lambda at: xxh3_64_intdigest(engines[at].name.encode(), block))
