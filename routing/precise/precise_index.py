"""The precise prefix index: cached tokens of a prompt on every engine, from the KV events that engines publish.

One walk down a prompt answers for all engines. Prompts that were placed or computed, but whose events have not come
yet, count as held. Fed with events and pending prompts; no socket, no text, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from msgspec import Struct

from routing.precise.block_bitmap import BlockBitmap
from routing.precise.cache_groups import count_leading_held, leading_hit_tokens
from routing.precise.cache_mirror import CacheGroup, EngineCacheMirror
from routing.precise.kv_events import GPU, KvEvent
from routing.precise.token_chains import BlockHashes

MAX_SWEPT_PER_EVENT = 256
"""Links of thrown-away shelves that are cleaned up with every event: a sweep keeps pace with any stream of events."""

MAX_BLOCKS = 1 << 22
"""Per engine: 67 million tokens in blocks of 16. Blocks beyond it are not tracked."""

MAX_PENDING = 1 << 14
"""Requests in flight at once; beyond it the oldest pending prompt is withdrawn."""


class CachedPrefix(Struct, frozen=True, gc=False):
    """How much of a prompt one engine holds: in all, and of that on slower media."""

    tokens: int = 0
    slow_tokens: Mapping[str, int] = {}


NOTHING_CACHED = CachedPrefix()


@dataclass(frozen=True, slots=True)
class PendingPrefill:
    """A prompt that is on its way to an engine, or being computed there."""

    engine: str
    links: Sequence[tuple[int, Sequence[int]]]
    """By cache group. Of a computed prompt: links that no event had reported by then."""


class PreciseIndex:
    """One per KV index process."""

    def __init__(self, *, max_blocks: int = MAX_BLOCKS) -> None:
        self._masks = BlockBitmap()
        self._engines: dict[str, EngineCacheMirror] = {}
        self._pending: dict[str, PendingPrefill] = {}
        """By ticket, until the prompt is computed or has left without."""
        self._due: dict[str, PendingPrefill] = {}
        """By ticket, from then on."""
        self._max_blocks = max_blocks
        self._version = -1
        self._alike: dict[tuple[int, int], tuple[int, dict[int, str]]] = {}
        """(block, link) to the engines with blocks of that size and nothing else: their shelves, and whose they are."""
        self._odd: dict[str, EngineCacheMirror] = {}
        """Engines with several groups or media."""

    def __repr__(self) -> str:
        return f"<PreciseIndex {len(self._masks)} blocks on {len(self._engines)} engines>"

    def __len__(self) -> int:
        return len(self._masks)

    @property
    def engines(self) -> Mapping[str, EngineCacheMirror]:
        return self._engines

    def add_engine(self, engine: str, block_tokens: int | None = None) -> None:
        """Begin to follow an engine. `block_tokens`: the size of its blocks, where its pod reports it."""
        followed = self._engines.get(engine)
        if followed is None:
            followed = self._engines[engine] = EngineCacheMirror(self._masks, self._max_blocks)
        followed.assume_block_size(block_tokens or 0)

    def remove_engine(self, engine: str) -> None:
        """Stop following an engine."""
        for ticket in [ticket for ticket, entry in self._pending.items() if entry.engine == engine]:
            self.remove_pending(ticket)
        for ticket in [ticket for ticket, entry in self._due.items() if entry.engine == engine]:
            self.expire(ticket)
        followed = self._engines.pop(engine, None)
        if followed:
            followed.detach()
            self._masks.version += 1

    def apply(self, engine: str, events: Iterable[KvEvent]) -> None:
        """Apply the events of one engine, in their order."""
        followed = self._engines[engine]
        for event in events:
            followed.apply(event)
            self._masks.sweep(MAX_SWEPT_PER_EVENT)

    def clear(self, engine: str) -> None:
        """An engine has lost its cache, or its events were lost."""
        self._engines[engine].clear()

    def correct(self, engine: str, ends: BlockHashes, real_tokens: int) -> None:
        """Record that an unreliable engine has reused exactly this much of a prompt, whatever its events reported."""
        followed = self._engines.get(engine)
        if followed is not None and followed.groups:
            followed.correct(ends, real_tokens)

    # -- pending prompts -------------------------------------------------------------------------------------------

    def add_pending(self, ticket: str, engine: str, ends: BlockHashes) -> None:
        """A prompt was placed on an engine: later requests will find it there."""
        followed = self._engines.get(engine)
        if followed is None or ticket in self._pending:
            return
        if len(self._pending) >= MAX_PENDING:
            self.remove_pending(next(iter(self._pending)))
        entry = PendingPrefill(engine, followed.pending_links(ends))
        self._pending[ticket] = entry
        for number, links in entry.links:
            self._masks.add_pending(followed.groups[number].on_gpu, links)

    def remove_pending(self, ticket: str) -> None:
        """The prompt will not be computed there. Safe to call again, and changes nothing about one that was."""
        entry = self._pending.pop(ticket, None)
        followed = self._engines.get(entry.engine) if entry else None
        if entry is None or followed is None:
            return
        for number, links in entry.links:
            self._masks.remove_pending(followed.groups[number].on_gpu, links)

    def prefill_done(self, ticket: str) -> bool:
        """Record that the prompt has been computed: its blocks now count as events report them; those not yet
        reported count until they are. Return True if there are such, which `expire` removes after a timeout.
        """
        entry = self._pending.pop(ticket, None)
        followed = self._engines.get(entry.engine) if entry else None
        if entry is None or followed is None:
            return False
        if len(self._due) >= MAX_PENDING:
            self.expire(next(iter(self._due)))
        due = [
            (number, self._masks.mark_computed(followed.groups[number].on_gpu, links, ticket))
            for number, links in entry.links
        ]
        if not any(links for _, links in due):
            return False
        self._due[ticket] = PendingPrefill(entry.engine, due)
        return True

    def expire(self, ticket: str) -> None:
        """Events that have not come by now never will. Safe to call again."""
        entry = self._due.pop(ticket, None)
        followed = self._engines.get(entry.engine) if entry else None
        if entry is None or followed is None:
            return
        for number, links in entry.links:
            self._masks.expire(followed.groups[number].on_gpu, links, ticket)

    # -- looking ---------------------------------------------------------------------------------------------------

    def lookup(self, ends: BlockHashes) -> dict[str, CachedPrefix]:
        """Return what engines have cached of a prompt, by name; engines with nothing cached are left out.

        Its last token is computed in any case, so it counts as held nowhere.
        """
        max_tokens, found = ends.tokens - 1, dict[str, CachedPrefix]()
        if max_tokens <= 0:
            return found
        if self._version != self._masks.version:
            self._sort()
        for (block, link), (among, names) in self._alike.items():
            for bit, blocks in self._walk(ends.of_blocks(block, link)[: max_tokens // block], among):
                found[names[bit]] = CachedPrefix(blocks * block)
        for name, followed in self._odd.items():
            held = self._look_closely(followed, ends, max_tokens)
            if held.tokens:
                found[name] = held
        return found

    def _sort(self) -> None:
        """Engines whose blocks are alike are looked at in one walk."""
        self._version = self._masks.version
        self._alike, self._odd = {}, {}
        for name, followed in self._engines.items():
            if followed.is_plain:
                group = next(iter(followed.groups.values()))
                among, names = self._alike.get((group.block_tokens, followed.link_tokens), (0, {}))
                names[group.on_gpu.bit] = name
                self._alike[group.block_tokens, followed.link_tokens] = (among | group.on_gpu.bit, names)
            elif followed.groups:
                self._odd[name] = followed

    def _walk(self, links: Sequence[int], among: int) -> Iterator[tuple[int, int]]:
        """Yield (bit of a shelf, leading blocks on it) for the shelves of `among` that hold any."""
        held, pending_of = self._masks.held.get, self._masks.pending.get
        alive, depth = among, 0
        for depth, link in enumerate(links):
            still = alive & (held(link, 0) | pending_of(link, 0))
            if still == alive:
                continue
            if depth:
                yield from ((bit, depth) for bit in _bits(alive ^ still))
            alive = still
            if not alive:
                return
        yield from ((bit, len(links)) for bit in _bits(alive) if links)

    def _look_closely(self, followed: EngineCacheMirror, ends: BlockHashes, max_tokens: int) -> CachedPrefix:
        """Where groups or media differ."""
        views = [_view(group, self._masks, ends, followed.link_tokens) for group in followed.groups.values()]
        near = leading_hit_tokens(views, max_tokens)
        slow: dict[str, int] = {}
        for medium in sorted({medium for group in followed.groups.values() for medium in group.refcounts} - {GPU}):
            reached = min(
                (view.reach(near + sum(slow.values()), medium, max_tokens) for view in views if view.has(medium)),
                default=0,
            )
            more = reached - near - sum(slow.values())
            if more > 0:
                slow[medium] = more
        return CachedPrefix(near + sum(slow.values()), slow)


@dataclass(slots=True)
class GroupPrefix:
    """One cache group's blocks of one prompt."""

    kind: str
    window_tokens: int
    block_tokens: int
    held: Sequence[int]
    """Truthy where the accelerator holds the block."""
    masks: Sequence[int]
    bits: Mapping[str, int]

    def has(self, medium: str) -> bool:
        return medium in self.bits

    def reach(self, start: int, medium: str, max_tokens: int) -> int:
        """How far a medium goes on from `start` tokens. Tiers may keep several blocks under the name of the last."""
        bit = self.bits[medium]
        there = [position for position, mask in enumerate(self.masks, 1) if mask & bit]
        if not there:
            return start
        every = gcd(*there)
        steps = [mask & bit for mask in self.masks[every - 1 :: every]]
        first = start // (self.block_tokens * every)
        run = count_leading_held(steps[first:], len(steps))
        return max(
            start, min((first + run) * every * self.block_tokens, max_tokens // self.block_tokens * self.block_tokens)
        )


def _view(group: CacheGroup, masks: BlockBitmap, ends: BlockHashes, link_tokens: int) -> GroupPrefix:
    links = ends.of_blocks(group.block_tokens, link_tokens)
    seen = masks.masks_of(links)
    bits = {medium: refcounts.bit for medium, refcounts in group.refcounts.items()}
    first = bits[GPU]
    held = [mask & first for mask in seen]
    return GroupPrefix(group.kind, group.window_tokens, group.block_tokens, held, seen, bits)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest
        mask ^= lowest
