"""One engine followed: groups learned from events, names forgotten with the last copy, promises kept."""

from typing import Any

from routing.precise.block_bitmap import BlockBitmap
from routing.precise.cache_mirror import FULL_ATTENTION, EngineCacheMirror
from routing.precise.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from routing.precise.token_chains import BlockHashes, TokenPrompt, pack_tokens


def followed() -> EngineCacheMirror:
    return EngineCacheMirror(BlockBitmap(), max_blocks=100)


def test_groups_are_what_events_say() -> None:
    """Kind, window and block size come with the first event; what was supposed gives way."""
    one = followed()
    one.assume_block_size(16)
    assert (one.groups[0].kind, one.groups[0].block_tokens, one.is_plain) == (FULL_ATTENTION, 16, True)
    one.apply(BlockStored([1], None, [1, 2], 2, kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=8))
    group = one.groups[0]
    assert (group.kind, group.window_tokens, group.block_tokens) == ("sliding_window", 8, 2)
    assert not one.is_plain
    one.assume_block_size(32)
    assert one.groups[0].block_tokens == 2


def test_a_sparse_event_says_what_its_group_is() -> None:
    """A sliding group tells only its last blocks, and before the full one that can name them, as vLLM does."""
    one = followed()
    one.assume_block_size(2)
    sliding = BlockStored(
        [2, 3], None, [1] * 6, 2, group_idx=0, kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=4
    )
    full = BlockStored([1, 2, 3], None, [1] * 6, 2, group_idx=1, kv_cache_spec_kind="full_attention")
    one.apply(sliding)
    one.apply(full)
    assert [(group.kind, group.window_tokens) for group in one.groups.values()] == [
        ("sliding_window", 4),
        ("full_attention", 0),
    ]
    assert len(one) == 3
    one.apply(BlockRemoved([1], group_idx=1))
    one.apply(BlockRemoved([2], group_idx=1))
    assert len(one) == 2


def test_a_block_computed_twice_is_removed_twice() -> None:
    """The name lives as long as one copy does."""
    one = followed()
    for _ in range(2):
        one.apply(BlockStored([1], None, [1, 2], 2))
    one.apply(BlockRemoved([1]))
    assert len(one) == 1
    one.apply(BlockRemoved([1]))
    one.apply(BlockRemoved([1]))
    assert len(one) == 0


def test_blocks_told_without_tokens_wait_for_their_names() -> None:
    """An offloading tier speaks first; who names the block later makes it count there too."""
    one = followed()
    one.assume_block_size(2)
    one.apply(BlockStored([1], None, [], 0, medium="CPU"))
    one.apply(BlockStored([2], None, [], 0, medium="CPU"))
    one.apply(BlockRemoved([2], medium="CPU"))
    one.apply(BlockStored([1, 2], None, [1, 2, 3, 4], 2))
    one.apply(BlockRemoved([1]))
    one.apply(BlockRemoved([2]))
    assert len(one) == 1
    assert sorted(one.groups[0].refcounts) == ["CPU", "GPU"]


def test_clearing_keeps_the_groups_and_what_is_promised() -> None:
    """The engine is the same, its cache is another."""
    masks = BlockBitmap()
    one = EngineCacheMirror(masks, max_blocks=100)
    one.assume_block_size(2)
    ends = BlockHashes(TokenPrompt(pack_tokens([1, 2, 3])))
    (number, links), *_ = one.pending_links(ends)
    masks.add_pending(one.groups[number].on_gpu, links)
    before = one.groups[0].on_gpu.bit
    one.apply(AllBlocksCleared())
    assert one.groups[0].on_gpu.bit != before
    assert masks.pending == dict.fromkeys(links, one.groups[0].on_gpu.bit)


def test_of_a_sliding_group_only_the_last_window_is_promised() -> None:
    """Engines keep what the same prompt would go on from: nothing before the window, and the last token is computed."""
    one = followed()
    one.apply(BlockStored([1], None, [1, 1], 2))
    sliding: dict[str, Any] = {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 4}
    one.apply(BlockStored([1], None, [1, 1], 2, group_idx=1, **sliding))
    for tokens, window in ((9, slice(2, 4)), (8, slice(1, 3)), (3, slice(0, 1)), (2, slice(0, 0))):
        ends = BlockHashes(TokenPrompt(pack_tokens(range(tokens))))
        links = ends.of_blocks(2, one.link_tokens)
        promised = dict(one.pending_links(ends))
        assert promised[0] == links
        assert promised.get(1, []) == links[window]


def test_blocks_that_do_not_fit_the_links_are_given_up() -> None:
    """A group whose blocks end between links cannot be followed beside one whose blocks are links."""
    one = followed()
    one.apply(BlockStored([1], None, [1] * 16, 16))
    one.apply(BlockStored([2], None, [1] * 8, 8, group_idx=1))
    assert list(one.groups) == [0]
    assert one.count.dropped == 1
