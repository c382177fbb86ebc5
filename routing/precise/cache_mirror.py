"""A mirror of one engine's KV cache, from its events: the engine's block hashes mapped to links of our own chain.

Names are learned from the tokens and the parent that an event carries, never computed: engines hash with secrets of
their own. What cannot be placed yet (its parent, or its tokens, are not known) waits, bounded, until it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest

from routing.precise.block_bitmap import BlockBitmap, BlockRefcounts
from routing.precise.cache_groups import RECURRENT_KINDS, SLIDING_WINDOW_KINDS, UNCACHED_KINDS, window_blocks
from routing.precise.kv_events import GPU, AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, KvEvent
from routing.precise.token_chains import (
    BYTES_PER_TOKEN,
    BlockHashes,
    chain_hashes,
    chain_root,
    link_tokens_for,
    pack_tokens,
)

MAX_ORPHANED_BLOCKS = 1 << 14
"""Blocks of one engine whose place is not known yet; the oldest are given up."""

FULL_ATTENTION = "full_attention"


@dataclass(slots=True)
class CacheGroup:
    """One cache group: layers that keep their KV alike."""

    kind: str
    window_tokens: int
    block_tokens: int
    refcounts: dict[str, BlockRefcounts]
    """By medium; the accelerator's own is always there."""

    @property
    def on_gpu(self) -> BlockRefcounts:
        return self.refcounts[GPU]

    @property
    def is_plain(self) -> bool:
        """Whether the cached prefix is exactly the leading blocks held on the accelerator."""
        return len(self.refcounts) == 1 and self.kind not in RECURRENT_KINDS | SLIDING_WINDOW_KINDS | UNCACHED_KINDS


@dataclass(slots=True)
class OrphanedBlocks:
    """Blocks that came before their parent, and which of them have been removed since."""

    event: BlockStored
    removed: set[EngineHash] = field(default_factory=set)


@dataclass(slots=True)
class MirrorCounts:
    """What was seen of one engine's events, in blocks."""

    orphaned: int = 0
    dropped: int = 0
    """Waited in vain, came beyond the bound, or could not be read."""


class EngineCacheMirror:
    """Mutable; written by `PreciseIndex` only."""

    def __init__(self, masks: BlockBitmap, max_blocks: int) -> None:
        self._masks = masks
        self._max_blocks = max_blocks
        self._names: dict[EngineHash, int] = {}
        self._orphans: dict[EngineHash, list[OrphanedBlocks]] = {}
        """By the parent they wait for."""
        self._waiting: dict[EngineHash, OrphanedBlocks] = {}
        """By the name of each block in them."""
        self._unnamed: dict[EngineHash, list[BlockRefcounts]] = {}
        """Where blocks are that were reported without their tokens, by engine hash."""
        self.link_tokens = 0
        self.groups: dict[int, CacheGroup] = {}
        self.count = MirrorCounts()

    def __len__(self) -> int:
        return len(self._names)

    @property
    def is_plain(self) -> bool:
        """Whether it has one group, and that a plain one."""
        return len(self.groups) == 1 and all(group.is_plain for group in self.groups.values())

    @property
    def refcounts(self) -> list[BlockRefcounts]:
        return [refcounts for group in self.groups.values() for refcounts in group.refcounts.values()]

    def assume_block_size(self, block_tokens: int) -> None:
        """Before its first event: it will have one ordinary group with blocks of this size."""
        if not self.groups and block_tokens > 0:
            self.link_tokens = link_tokens_for(block_tokens)
            self.groups[0] = CacheGroup(FULL_ATTENTION, 0, block_tokens, {GPU: self._masks.new_refcounts()})

    def apply(self, event: KvEvent) -> None:
        """Follow one event."""
        match event:
            case BlockStored():
                self._store(event)
            case BlockRemoved():
                for name in event.block_hashes:
                    self._remove(event, name)
            case AllBlocksCleared():
                self.clear()

    def clear(self) -> None:
        """Drop all held blocks; pending ones are kept. Takes constant time for a large cache."""
        fresh = [self._masks.new_refcounts() for _ in self.groups]
        for group, refcounts in zip(self.groups.values(), fresh, strict=True):
            self._masks.transfer_pending(group.on_gpu, refcounts)
        self.detach()
        for group, refcounts in zip(self.groups.values(), fresh, strict=True):
            group.refcounts = {GPU: refcounts}

    def detach(self) -> None:
        """Take all of it out of the masks."""
        self._masks.discard(self.refcounts, self._names.values())
        self._names = {}
        self._orphans.clear()
        self._waiting.clear()
        self._unnamed.clear()

    def pending_links(self, ends: BlockHashes) -> list[tuple[int, Sequence[int]]]:
        """What a prompt is sure to leave in which group once its prefill is done."""
        return [
            (number, links)
            for number, group in self.groups.items()
            if (links := _left_by(group, ends.of_blocks(group.block_tokens, self.link_tokens), ends.tokens))
        ]

    def correct(self, ends: BlockHashes, real_tokens: int) -> None:
        """Set the cached length of a prompt to what the engine reused. Its events are known to be incomplete."""
        for group in self.groups.values():
            if group.kind in RECURRENT_KINDS | SLIDING_WINDOW_KINDS | UNCACHED_KINDS:
                continue
            links = ends.of_blocks(group.block_tokens, self.link_tokens)[: (ends.tokens - 1) // group.block_tokens]
            real = real_tokens // group.block_tokens
            for link in links[:real]:
                self._masks.infer(group.on_gpu, link)
            for link in links[real:]:
                self._masks.erase(group.on_gpu, link)

    # -- storing ---------------------------------------------------------------------------------------------------

    def _store(self, event: BlockStored) -> None:
        pending = [OrphanedBlocks(event)]
        while pending:
            for name in self._insert(pending.pop()):
                adopted = self._orphans.pop(name, ())
                pending += adopted
                for orphan in adopted:
                    for block in orphan.event.block_hashes:
                        self._waiting.pop(block, None)

    def _insert(self, found: OrphanedBlocks) -> Sequence[EngineHash]:
        """Put an event's blocks on their shelf. Returns the names that are new."""
        event = found.event
        if not event.has_all_tokens:
            self._put_by_name(event)
            return ()
        group = self._group_of(event)
        parent = self._parent_of(event)
        if group is None:
            self.count.dropped += len(event.block_hashes)
            return ()
        if parent is None:
            self._keep_orphans(event)
            return ()
        try:
            links = self._links(event, parent)
        except (OverflowError, TypeError):
            self.count.dropped += len(event.block_hashes)
            return ()
        new = self._name(event, links)
        refcounts, names = self._refcounts_of(group, event.medium), self._names
        for name in event.block_hashes:
            link = names.get(name)
            if link is not None and name not in found.removed:
                self._masks.put(refcounts, link)
        return new

    def _name(self, event: BlockStored, links: Sequence[int]) -> list[EngineHash]:
        names = self._names
        new = [(name, link) for name, link in zip(event.block_hashes, links, strict=True) if name not in names]
        room = self._max_blocks - len(names)
        if len(new) > room:
            self.count.dropped += len(new) - room
            new = new[:room]
        names.update(new)
        if self._unnamed:
            for name, link in new:
                for refcounts in self._unnamed.pop(name, ()):
                    self._masks.put(refcounts, link)
        return [name for name, _ in new]

    def _parent_of(self, event: BlockStored) -> int | None:
        if event.parent_block_hash is None:
            return chain_root(event.lora_name or "", _salt(event))
        return self._names.get(event.parent_block_hash)

    def _links(self, event: BlockStored, parent: int) -> Sequence[int]:
        packed, extras = pack_tokens(event.token_ids), _media(event)
        if not extras:
            every = event.block_size // self.link_tokens
            return chain_hashes(packed, self.link_tokens, parent)[every - 1 :: every]
        links, size = [], event.block_size * BYTES_PER_TOKEN
        for position, extra in enumerate(extras):
            # What is in the picture belongs to what the block says.
            start = xxh3_64_intdigest(extra, parent) if extra else parent
            parent = chain_hashes(packed[position * size : (position + 1) * size], self.link_tokens, start)[-1]
            links.append(parent)
        return links

    def _put_by_name(self, event: BlockStored) -> None:
        """Add blocks reported without tokens: other groups or the accelerator's own events name them, now or later."""
        group = self._group_of(event)
        if group is None:
            self.count.dropped += len(event.block_hashes)
            return
        refcounts = self._refcounts_of(group, event.medium)
        for name in event.block_hashes:
            link = self._names.get(name)
            if link is not None:
                self._masks.put(refcounts, link)
                continue
            self._unnamed.setdefault(name, []).append(refcounts)
            if len(self._unnamed) > MAX_ORPHANED_BLOCKS:
                self._unnamed.pop(next(iter(self._unnamed)))
                self.count.dropped += 1

    def _keep_orphans(self, event: BlockStored) -> None:
        if event.parent_block_hash is None:
            return
        orphan = OrphanedBlocks(event)
        self.count.orphaned += len(event.block_hashes)
        self._orphans.setdefault(event.parent_block_hash, []).append(orphan)
        self._waiting.update(dict.fromkeys(event.block_hashes, orphan))
        while len(self._waiting) > MAX_ORPHANED_BLOCKS:
            self._give_up(next(iter(self._orphans)))

    def _give_up(self, parent: EngineHash) -> None:
        for orphan in self._orphans.pop(parent):
            for name in orphan.event.block_hashes:
                self._waiting.pop(name, None)
            self.count.dropped += len(orphan.event.block_hashes)

    # -- removing --------------------------------------------------------------------------------------------------

    def _remove(self, event: BlockRemoved, name: EngineHash) -> None:
        group = self.groups.get(event.group_idx or 0)
        refcounts = group.refcounts.get(event.medium or GPU) if group else None
        link = self._names.get(name)
        if link is not None and refcounts is not None:
            self._masks.remove(refcounts, link)
            if not any(self._masks.is_held(one, link) for one in self.refcounts):
                del self._names[name]
        elif link is None and (orphan := self._waiting.pop(name, None)) is not None:
            orphan.removed.add(name)
        elif link is None and refcounts is not None and refcounts in self._unnamed.get(name, ()):
            self._unnamed[name].remove(refcounts)
            if not self._unnamed[name]:
                del self._unnamed[name]

    # -- groups ----------------------------------------------------------------------------------------------------

    def _group_of(self, event: BlockStored) -> CacheGroup | None:
        """The group an event speaks of, made or corrected by it. None where its blocks cannot be followed."""
        block = event.block_size
        number = event.group_idx or 0
        group = self.groups.get(number)
        if block <= 0:
            return group
        if self.link_tokens == 0 or (not self._names and group is not None and group.block_tokens != block):
            self.link_tokens = link_tokens_for(block)
        if block % self.link_tokens:
            return None
        if group is None:
            group = self.groups[number] = CacheGroup(FULL_ATTENTION, 0, block, {GPU: self._masks.new_refcounts()})
        kind = event.kv_cache_spec_kind or group.kind
        window = event.kv_cache_spec_sliding_window or group.window_tokens
        if (event.medium or GPU) != GPU:
            block = group.block_tokens
        if (kind, window, block) != (group.kind, group.window_tokens, group.block_tokens):
            group.kind, group.window_tokens, group.block_tokens = kind, window, block
            self._masks.version += 1
        return group

    def _refcounts_of(self, group: CacheGroup, medium: str | None) -> BlockRefcounts:
        refcounts = group.refcounts.get(medium or GPU)
        if refcounts is None:
            refcounts = group.refcounts[medium or GPU] = self._masks.new_refcounts()
        return refcounts


def _left_by(group: CacheGroup, links: Sequence[int], tokens: int) -> Sequence[int]:
    if group.kind in RECURRENT_KINDS:
        return links[-1:]
    if group.kind in SLIDING_WINDOW_KINDS and group.window_tokens:
        # The window that the same prompt would go on from: its last token is computed in any case.
        end = (tokens - 1) // group.block_tokens
        return links[max(0, end - window_blocks(group)) : end]
    return links


def _salt(event: BlockStored) -> str:
    """The cache salt: a bare string among the first block's keys, behind the adapter's name."""
    keys = event.extra_keys[0] if event.extra_keys else None
    strings = [key for key in _without_adapter(event, keys) if isinstance(key, str)]
    return strings[-1] if strings else ""


def _media(event: BlockStored) -> list[bytes]:
    """What else than tokens each block consists of; empty where it is text alone."""
    if not event.extra_keys:
        return []
    found = [
        [key for key in _without_adapter(event, keys) if not isinstance(key, str)]
        for keys in islice(event.extra_keys, len(event.block_hashes))
    ]
    if not any(found):
        return []
    return [msgspec.msgpack.encode(keys) if keys else b"" for keys in found]


def _without_adapter(event: BlockStored, keys: list[Any] | None) -> list[Any]:
    if not keys:
        return []
    return keys[1:] if event.lora_name and keys[0] == event.lora_name else keys
