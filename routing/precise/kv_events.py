"""KV cache events of an engine: blocks stored, blocks removed, all cleared. Values as vLLM publishes them.

Field names and their order are vLLM's (`vllm/distributed/kv_events.py`): newer versions send maps, older ones arrays.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

EngineHash = int | bytes
"""An engine's own name of a block: equal on one engine while it lives, and nothing more than a name."""

GPU = "GPU"


class BlockStored(Struct, tag=True, frozen=True, gc=False):
    """Blocks that are now in a cache, as a chain: each block's parent is the one before it.

    `token_ids` are those of all blocks in the range, empty where an offloading tier names blocks only by hash; where
    blocks of the range are not kept (sliding windows, recurrent states), there are fewer hashes than blocks.
    `extra_keys`, one per hash: adapter's name, (media hash, offset) pairs, cache salt.
    """

    block_hashes: list[EngineHash]
    parent_block_hash: EngineHash | None = None
    token_ids: list[int] = []
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None

    @property
    def has_all_tokens(self) -> bool:
        """Whether each hash can be matched with its tokens."""
        return 0 < len(self.token_ids) == len(self.block_hashes) * self.block_size


class BlockRemoved(Struct, tag=True, frozen=True, gc=False):
    """Copies of blocks that are gone; of a block that was held twice one copy stays."""

    block_hashes: list[EngineHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(Struct, tag=True, frozen=True, gc=False):
    """The cache is empty."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared
