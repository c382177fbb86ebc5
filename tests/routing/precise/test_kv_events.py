"""Events as vLLM packs them."""

import msgspec

from routing.precise.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent


def test_events_are_read_as_vllm_packs_them() -> None:
    """Maps with a type tag; what equals its default is left out, what is new is passed over."""
    packed = msgspec.msgpack.encode(
        [
            {
                "type": "BlockStored",
                "block_hashes": [7696251535572612920, b"\x01" * 32],
                "parent_block_hash": None,
                "token_ids": [1, 2, 3, 4],
                "block_size": 2,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "extra_keys": [["tenantA"], None],
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
                "session_id": "s",
                "of_tomorrow": 1,
            },
            {"type": "BlockRemoved", "block_hashes": [5], "medium": "GPU", "group_idx": 0},
            {"type": "AllBlocksCleared"},
        ]
    )
    stored, removed, cleared = msgspec.msgpack.decode(packed, type=list[KvEvent])
    assert isinstance(stored, BlockStored)
    assert stored.has_all_tokens
    assert stored.extra_keys == [["tenantA"], None]
    assert removed == BlockRemoved([5], "GPU", 0)
    assert cleared == AllBlocksCleared()


def test_sparse_events_cannot_be_matched_with_tokens() -> None:
    """Fewer hashes than blocks, or no tokens: only names are told."""
    assert not BlockStored([1], None, [1, 2, 3, 4], 2).has_all_tokens
    assert not BlockStored([1], None, [], 0).has_all_tokens
