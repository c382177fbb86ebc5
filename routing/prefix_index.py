"""The approximate prefix index: which engine holds which prompt prefix, from what was sent to it.

Per engine a radix tree of prompts, evicted least recently used first within the engine's KV capacity, so that it
forgets when the engine forgets; over all engines a map of block hash to a bit mask. The `cached_tokens` of each
response correct it. Prompts of other gateways stay packed until a prompt that shares their blocks is looked up: until
then they only take room in the engine's tree. Sizes are in the unit of `Prompt.size`; a turn (a counter) stands for
time. Independent of load and makes no choice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from math import log

from msgspec import Struct

from routing.blocks import BLOCK_AT, BLOCK_BYTES, PackedPrompt, Prompt, packed_block, unpack_blocks
from routing.cost import prefill_work
from routing.eligible import EligibleEngines
from routing.tokens import PromptTokenEstimate

REUSE_MEMORY = 500.0
"""Prompts after which the old has faded."""

REUSE_DECAY = 1 - 1 / REUSE_MEMORY

OLDER_HALF = log(2)
"""Hits come about as often from a minute ago to two as from two to four: by the logarithm of their age."""


class ReuseRate:
    """One per index; observes each prompt that is added to an engine."""

    __slots__ = ("_computed", "_late", "share")

    def __init__(self) -> None:
        self.share = 0.0
        """Predicted tokens that will be computed again per evicted token."""
        self._late = 0.0
        self._computed = 0.0

    def observe(self, computed: float, late: float) -> None:
        """Record a prompt added to an engine: size computed, and size last used in the older half of the history.

        Both are 0 while the engine has room, for then nothing is displaced.
        """
        self._late = self._late * REUSE_DECAY + late
        self._computed = self._computed * REUSE_DECAY + computed
        self.share = self._late / (OLDER_HALF * self._computed) if self._computed else 0.0


FULL_SHARE = 0.9
"""From this share of its capacity on a cache is taken to be full: what runs holds room besides."""


class RadixNode:
    """Consecutive blocks, `start` blocks into every prompt that contains them, and the runs that follow them."""

    __slots__ = ("blocks", "children", "created_turn", "end", "ends", "packed", "parent", "start", "turn")

    def __init__(
        self,
        blocks: tuple[int, ...],
        start: int,
        ends: Sequence[int],
        parent: RadixNode | None,
        turn: int,
        packed: bytes = b"",
    ) -> None:
        self.blocks = blocks
        self.packed = packed
        """Its blocks where they are packed still; then `blocks` is empty."""
        self.start = start
        self.end = start + (len(blocks) or len(packed) // BLOCK_BYTES)
        """How many blocks a prompt has up to where this run ends."""
        self.ends = ends
        self.parent = parent or self
        self.turn = turn
        self.created_turn = turn
        """The turn in which its first block came."""
        self.children: dict[int, RadixNode] = {}
        """By their first block."""

    @property
    def first_block(self) -> int:
        """Its first block, packed or not."""
        return packed_block(self.packed, 0) if self.packed else self.blocks[0]

    def shared_with_packed(self, packed: bytes) -> int:
        """How many of this run's blocks a packed prompt has too; the first is known to be."""
        own, own_packed, start = self.blocks, self.packed, self.start
        reach = range(min(self.end, len(packed) // BLOCK_BYTES) - start)
        if own_packed:
            return bisect_left(
                reach, True, key=lambda index: packed_block(own_packed, index) != packed_block(packed, start + index)
            )
        return bisect_left(reach, True, key=lambda index: own[index] != packed_block(packed, start + index))

    def shared_with(self, blocks: Sequence[int]) -> int:
        """How many of this run's blocks the prompt of these blocks has too; the first is known to be."""
        own, start = self.blocks, self.start
        end = self.end
        if end <= len(blocks) and own[-1] == blocks[end - 1]:
            return len(own)
        reach = range(min(len(own), len(blocks) - start))
        return bisect_left(reach, True, key=lambda index: own[index] != blocks[start + index])


class PrefixUse(Struct, frozen=True, gc=False):
    """What using a prompt found: how many of its blocks were there, and when each stretch of them was used before."""

    cached_blocks: int
    earlier: tuple[tuple[int, int], ...]
    """(blocks up to the stretch's end, turn that had last used it), from the prompt's beginning on."""
    created_turn: int
    """The turn in which the last of them came."""


def _hold_nowhere(_: tuple[int, ...]) -> None:
    """Do nothing: for a cache without an index."""


class EngineRadixCache:
    """One engine's prompts. Turns are given by the caller and only grow; what is dropped is returned to the caller."""

    __slots__ = (
        "_bit",
        "_block_count",
        "_hold",
        "_max_blocks",
        "_oldest_first",
        "_packed",
        "_root",
        "capacity",
        "used",
    )

    def __init__(
        self,
        capacity: int,
        max_blocks: int,
        bit: int = 1,
        packed: dict[int, int] | None = None,
        hold: Callable[[tuple[int, ...]], None] = _hold_nowhere,
    ) -> None:
        """`packed`: a mask of engines by the first block of each packed run, in which this one has `bit`. `hold` is
        called with the blocks of a run that was packed, and is not any longer.
        """
        self.capacity = capacity
        self.used = 0
        self._max_blocks = max_blocks
        self._block_count = 0
        self._root = RadixNode((), 0, (), None, 0)
        self._oldest_first: OrderedDict[RadixNode, None] = OrderedDict()
        self._bit = bit
        self._packed = {} if packed is None else packed
        self._hold = hold

    def __len__(self) -> int:
        return self._block_count

    def __iter__(self) -> Iterator[int]:
        """All blocks held, those forgotten first foremost."""
        for run in self._oldest_first:
            yield from reversed(run.blocks or unpack_blocks(run.packed))

    @property
    def next_evicted_turn(self) -> int | None:
        """When what would be forgotten next was last used; None where there is room yet."""
        if self.used < FULL_SHARE * self.capacity or not self._oldest_first:
            return None
        return next(iter(self._oldest_first)).turn

    def depth(self, blocks: Sequence[int]) -> int:
        """How many of a prompt's blocks are held."""
        path = self._path(blocks)
        last = path[-1] if path else self._root
        following = last.children.get(blocks[last.end]) if last.end < len(blocks) else None
        return last.end + (following.shared_with(blocks) if following else 0)

    def insert(self, prompt: Prompt, turn: int) -> PrefixUse:
        """Hold all blocks of a prompt, as last used in `turn`.

        Deepest first, so that the head of a chain is the last to be forgotten, as in the engine.
        """
        path = self._path(prompt.blocks, splitting=True)
        last = path[-1] if path else self._root
        use = PrefixUse(last.end, tuple([(run.end, run.turn) for run in path]), last.created_turn)
        if use.cached_blocks < len(prompt.blocks):
            self._append(path, prompt, use.cached_blocks, turn)
        now_newest = self._oldest_first.move_to_end
        for run in reversed(path):
            run.turn = turn
            now_newest(run)
        return use

    def insert_packed(self, prompt: PackedPrompt, turn: int, *, learns: bool = False) -> PrefixUse:
        """Do what `insert` does, but leave the blocks packed; when they were used before is returned if `learns`."""
        packed, end, node, first = prompt.packed, 0, self._root, 0
        length = len(packed) // BLOCK_BYTES
        path: list[RadixNode] = []
        while end < length:
            (first,) = BLOCK_AT(packed, BLOCK_BYTES * end)
            child = node.children.get(first)
            if child is None:
                break
            end, own = child.end, child.packed
            if end > length or (
                own[-BLOCK_BYTES:] != packed[BLOCK_BYTES * (end - 1) : BLOCK_BYTES * end]
                if own
                else child.blocks[-1] != BLOCK_AT(packed, BLOCK_BYTES * (end - 1))[0]
            ):
                child = self._split(child, child.shared_with_packed(packed))
                end = child.end
            path.append(child)
            node = child
        use = PrefixUse(end, tuple([(run.end, run.turn) for run in path]) if learns else (), node.created_turn)
        if end < length:
            ends = prompt.ends
            if node.packed and not node.children:
                node.packed += packed[BLOCK_BYTES * end :]
                node.end, node.ends = length, ends
            else:
                fresh = RadixNode((), end, ends, node, turn, packed[BLOCK_BYTES * end :])
                node.children[first] = fresh
                self._oldest_first[fresh] = None
                table = self._packed
                table[first] = table.get(first, 0) | self._bit
                path.append(fresh)
            self.used += ends[length - 1] - (ends[end - 1] if end else 0)
            self._block_count += length - end
        now_newest = self._oldest_first.move_to_end
        while path:
            node = path.pop()
            node.turn = turn
            now_newest(node)
        return use

    def unpack(self, blocks: Sequence[int]) -> None:
        """Unpack what is held of a prompt."""
        self._path(blocks)

    def forget_packed(self) -> None:
        """Remove the packed runs from the table of them: the cache is given up."""
        for run in self._oldest_first:
            if run.packed:
                self._remove_packed(run.first_block)

    def evict(self) -> list[int]:
        """Forget the least recently used blocks until the rest fits; returns those that were not packed."""
        dropped: list[int] = []
        while (excess := self.used - self.capacity) > 0 or self._block_count > self._max_blocks:
            oldest = next(iter(self._oldest_first))
            start, end, ends = oldest.start, oldest.end, oldest.ends
            keep = bisect_right(ends, ends[end - 1] - excess, start, end) - start
            if self._block_count > self._max_blocks:
                keep = min(keep, end - start - (self._block_count - self._max_blocks))
            dropped += self._cut(oldest, max(0, keep))
        return dropped

    def forget_before(self, turn: int) -> list[int]:
        """Forget all that was last used before a turn; returns what of it was not packed."""
        dropped: list[int] = []
        while self._oldest_first:
            oldest = next(iter(self._oldest_first))
            if oldest.turn >= turn:
                break
            dropped += self._cut(oldest, 0)
        return dropped

    def retract(self, blocks: Sequence[int], turn: int, warm_blocks: int) -> list[int]:
        """Forget what only `turn` had predicted of a prompt, beyond the `warm_blocks` held before; return it."""
        dropped: list[int] = []
        for run in reversed(self._path(blocks)):
            if run.turn != turn or run.children or run.end <= warm_blocks:
                break
            dropped += self._cut(run, max(0, warm_blocks - run.start))
        return dropped

    def used_turn(self, blocks: Sequence[int]) -> int:
        """When the last of a prompt's blocks that is held was last used; 0 where none is."""
        path = self._path(blocks)
        return path[-1].turn if path else 0

    def forget_end(self, blocks: Sequence[int], ends: Container[int]) -> None:
        """Forget the end of a prompt, up to where another continues or, by its last block in `ends`, ends."""
        for run in reversed(self._path(blocks)):
            if run.children or run.blocks[-1] in ends:
                break
            self._cut(run, 0)

    def _path(self, blocks: Sequence[int], *, splitting: bool = False) -> list[RadixNode]:
        """The runs that a prompt goes through whole, unpacked; with `splitting` also one left in the middle, which
        is split there.
        """
        path: list[RadixNode] = []
        children, end, length = self._root.children, 0, len(blocks)
        while end < length:
            child = children.get(blocks[end])
            if child is None:
                break
            if child.packed:
                child = self._unpack(child)
                if path and child is path[-1]:
                    path.pop()
            end = child.end
            # Whole, as nearly always, where its last block is the prompt's too.
            if end > length or child.blocks[-1] != blocks[end - 1]:
                shared = child.shared_with(blocks)
                if splitting:
                    path.append(self._split(child, shared))
                break
            path.append(child)
            children = child.children
        return path

    def _split(self, run: RadixNode, keep: int) -> RadixNode:
        """Cut a run in two; returns the upper part."""
        packed, first = run.packed, run.first_block
        upper = RadixNode(run.blocks[:keep], run.start, run.ends, run.parent, run.turn, packed[: BLOCK_BYTES * keep])
        upper.created_turn = run.created_turn
        self._oldest_first[upper] = None
        run.parent.children[first] = upper
        run.parent, run.blocks, run.start = upper, run.blocks[keep:], run.start + keep
        run.packed = packed[BLOCK_BYTES * keep :]
        lower_first = run.first_block
        upper.children[lower_first] = run
        if packed:
            self._packed[lower_first] = self._packed.get(lower_first, 0) | self._bit
        return upper

    def _append(self, path: list[RadixNode], prompt: Prompt, warm: int, turn: int) -> None:
        """Put the blocks beyond the first `warm` after the path: into its last run where nothing else follows that."""
        last = path[-1] if path else self._root
        fresh = prompt.blocks[warm:]
        if path and not last.children:
            last.blocks += fresh
            last.end = len(prompt.blocks)
            last.ends = prompt.ends
        else:
            last.children[fresh[0]] = run = RadixNode(fresh, warm, prompt.ends, last, turn)
            self._oldest_first[run] = None
            path.append(run)
        self.used += prompt.covered - (prompt.ends[warm - 1] if warm else 0)
        self._block_count += len(fresh)

    def _cut(self, run: RadixNode, keep: int) -> tuple[int, ...]:
        """Drop all blocks of a run but the first `keep`; returns those that were not packed. Nothing may follow it."""
        kept_end, ends, packed, blocks = run.start + keep, run.ends, run.packed, run.blocks
        self.used -= ends[run.end - 1] - (ends[kept_end - 1] if kept_end else 0)
        self._block_count -= run.end - kept_end
        if keep:
            run.end = kept_end
            if packed:
                run.packed = packed[: BLOCK_BYTES * keep]
                return ()
            run.blocks = blocks[:keep]
            return blocks[keep:]
        del self._oldest_first[run]
        if packed:
            (first,) = BLOCK_AT(packed, 0)
            self._remove_packed(first)
        else:
            first = blocks[0]
        del run.parent.children[first]
        return blocks

    # -- packed runs ---------------------------------------------------------------------------------------------------

    def _remove_packed(self, first: int) -> None:
        left = self._packed.pop(first, 0) & ~self._bit
        if left:
            self._packed[first] = left

    def _unpack(self, run: RadixNode) -> RadixNode:
        """Unpack a run. Returns it, or the run before it, of which it has become a part as if it had come unpacked."""
        run.blocks, run.packed = unpack_blocks(run.packed), b""
        self._remove_packed(run.blocks[0])
        self._hold(run.blocks)
        before = run.parent
        if before is self._root or before.turn != run.turn or len(before.children) > 1:
            return run
        before.blocks += run.blocks
        before.end, before.ends, before.children = run.end, run.ends, run.children
        for child in before.children.values():
            child.parent = before
        del self._oldest_first[run]
        return before


RESIZE_SHARE = 0.05
"""Sizes are bytes computed from tokens by a learned ratio: smaller changes than this are its noise."""

PREDICTION_SLACK = 0.1
"""A prefix counts as lost only when the engine reused this share less than predicted: bytes are not tokens."""


NO_TURNS: frozenset[int] = frozenset()


class CacheInsertion(Struct, frozen=True, gc=False):
    """One prompt put on one engine: what to take back when the engine never computed it, and what to correct."""

    slot: int
    turn: int
    prompt: Prompt | PackedPrompt
    found: PrefixUse
    """What the engine held of it before."""
    unfinished_turns: AbstractSet[int]
    """Turns of `found` whose prefill had not ended when this one was put: what they share may still be uncached."""

    @property
    def is_pending(self) -> bool:
        """Whether what was found is still being computed: no engine has it sooner."""
        return self.found.created_turn in self.unfinished_turns


@dataclass(slots=True)
class EstimatedCache:
    """What we believe of one engine's cache."""

    cache: EngineRadixCache
    nominal_capacity: int
    created_turn: int
    """The last turn of all before it was first known, or last forgotten: traces from then say nothing of it."""
    turn: int = 0
    """The last one in which it was given a prompt."""
    unfinished: set[int] = field(default_factory=set)


class PrefixIndex:
    """Answers, in one walk down a prompt, how much of it every engine already holds."""

    def __init__(self, *, max_blocks_per_engine: int = 1 << 16) -> None:
        self._holders: dict[int, int] = {}
        self._packed: dict[int, int] = {}
        """The engines that hold a packed run, as a mask, by its first block. Its blocks are not in `_holders`."""
        self._engines: dict[int, EstimatedCache] = {}
        self._max_blocks = max_blocks_per_engine
        self.reuse = ReuseRate()
        self._turns = 0

    def __repr__(self) -> str:
        return f"<PrefixIndex {len(self._holders)} blocks on {len(self._engines)} engines>"

    def __len__(self) -> int:
        return len(self._holders)

    def resize(self, slot: int, capacity: int) -> None:
        """Say how much an engine's KV cache holds. A cache that became smaller forgets at once.

        What corrections have taught of its real size is kept in proportion.
        """
        engine = self._engine(slot, capacity)
        before = engine.nominal_capacity
        if abs(capacity - before) <= RESIZE_SHARE * before:
            return
        shadow = engine.cache
        shadow.capacity = shadow.capacity * capacity // before if before else capacity
        engine.nominal_capacity = capacity
        self._drop(slot, shadow.evict())

    def size_of(self, slot: int) -> int:
        """How much we believe an engine holds."""
        engine = self._engines.get(slot)
        return engine.cache.used if engine else 0

    def match(self, prompt: Prompt, among: int) -> list[tuple[int, int]]:
        """(mask of engines, cached size) of the engines of `among` that hold some of the prompt's beginning.

        An engine that holds a block holds all before it, so where engines leave the walk is found by bisection; and a
        single engine that is left knows by its own tree how far it goes, which is where it would be given the prompt.
        """
        if self._packed and not self._packed.keys().isdisjoint(prompt.blocks):
            self._unpack(prompt, among)
        holders, blocks, ends = self._holders, prompt.blocks, prompt.ends
        walked: list[tuple[int, int]] = []
        alive, depth = holders.get(blocks[0], 0) & among if blocks else 0, 1
        while alive:
            if not alive & (alive - 1):
                walked.append((alive, ends[self._engines[alive.bit_length() - 1].cache.depth(blocks) - 1]))
                break

            def some_have_left(block: int, alive: int = alive) -> bool:
                return holders.get(block, 0) & alive != alive

            depth = bisect_left(blocks, True, depth, key=some_have_left)
            still = holders.get(blocks[depth], 0) & alive if depth < len(blocks) else 0
            walked.append((alive ^ still, ends[depth - 1]))
            alive = still
        return walked

    def insert(self, slot: int, prompt: Prompt) -> CacheInsertion:
        """Record that an engine is given this prompt now, and will hold all of its full blocks.

        What they displace is forgotten when the engine has computed them: until then it is still held.
        """
        engine = self._engine(slot, 0)
        self._turns = engine.turn = self._turns + 1
        next_to_go = engine.cache.next_evicted_turn
        return self._inserted(slot, engine, prompt, self._use(slot, engine, prompt), next_to_go)

    def insert_packed(self, slot: int, prompt: PackedPrompt, *, learns: bool) -> CacheInsertion:
        """Record that another gateway gives an engine this prompt now, and leave it packed. Unless it `learns`, what it
        finds and displaces teaches nothing, and the result is not to be corrected.
        """
        engine = self._engines.get(slot) or self._engine(slot, 0)
        self._turns = engine.turn = turn = self._turns + 1
        if learns:
            next_to_go = engine.cache.next_evicted_turn
            return self._inserted(
                slot, engine, prompt, engine.cache.insert_packed(prompt, turn, learns=True), next_to_go
            )
        engine.unfinished.add(turn)
        return CacheInsertion(slot, turn, prompt, engine.cache.insert_packed(prompt, turn), NO_TURNS)

    def _inserted(
        self,
        slot: int,
        engine: EstimatedCache,
        prompt: Prompt | PackedPrompt,
        found: PrefixUse,
        next_to_go: int | None,
    ) -> CacheInsertion:
        """Learn what a prompt displaces. `next_to_go`: when what would be forgotten next was last used."""
        # Only turns of this prompt's path: a copy of all would make thousands of waiting prompts quadratic in memory.
        unfinished: AbstractSet[int] = NO_TURNS
        if engine.unfinished and found.cached_blocks:
            unfinished = engine.unfinished.intersection((found.created_turn, *(used for _, used in found.earlier)))
        engine.unfinished.add(engine.turn)
        ends, warm = prompt.ends, found.cached_blocks
        computed = prompt.size - (ends[warm - 1] if warm else 0)
        late = 0 if next_to_go is None else _late(ends, found, engine.turn, next_to_go)
        self.reuse.observe(computed, late)
        return CacheInsertion(slot, engine.turn, prompt, found, unfinished)

    def prefill_done(self, trace: CacheInsertion) -> None:
        """The engine has the whole prompt: its first token is out."""
        engine = self._engines.get(trace.slot)
        if engine is None or engine.created_turn >= trace.turn:
            return
        engine.unfinished.discard(trace.turn)
        cache = engine.cache
        if (cache.used > cache.capacity or len(cache) > self._max_blocks) and (dropped := cache.evict()):
            self._drop(trace.slot, dropped)

    def retract(self, trace: CacheInsertion) -> None:
        """Forget what only this turn had predicted: the engine never reported to have computed this prompt."""
        engine = self._engine_of(trace)
        if engine is None or trace.turn not in engine.unfinished:
            return
        engine.unfinished.discard(trace.turn)
        self._drop(trace.slot, engine.cache.retract(trace.prompt.blocks, trace.turn, trace.found.cached_blocks))
        if not engine.unfinished:
            # Blocks may remain that later requests counted on though no request computes them any more.
            self._drop(trace.slot, engine.cache.evict())

    def extend(self, trace: CacheInsertion, prompt: Prompt | PackedPrompt) -> None:
        """The engine has also decoded an answer: it holds `prompt`, which begins with the trace's own prompt."""
        engine = self._engine_of(trace)
        if engine:
            if isinstance(prompt, PackedPrompt):
                engine.cache.insert_packed(prompt, engine.turn)
            else:
                self._use(trace.slot, engine, prompt)
            if dropped := engine.cache.evict():
                self._drop(trace.slot, dropped)

    def correct(self, trace: CacheInsertion, real_size: float) -> bool:
        """Learn how much of a prompt the engine reused. Return True if it had evicted what was predicted cached.

        Engines forget the least recently used first: if a block last used in turn t was gone, so is all that was last
        used before t. A shadow that was too large for its engine also becomes smaller, and recovers slowly.
        """
        engine, ends, warm_blocks = self._engine_of(trace), trace.prompt.ends, trace.found.cached_blocks
        if engine is None or not warm_blocks:
            return False
        shadow = engine.cache
        if real_size >= ends[warm_blocks - 1] * (1 - PREDICTION_SLACK):
            shadow.capacity = min(engine.nominal_capacity, shadow.capacity + engine.nominal_capacity // 100)
            return False
        for end, used_turn in trace.found.earlier:
            if ends[end - 1] > real_size:
                if used_turn in trace.unfinished_turns:
                    return False
                self._drop(trace.slot, shadow.forget_before(used_turn))
                shadow.capacity = (9 * shadow.capacity + min(shadow.used, shadow.capacity)) // 10
                return True
        return False

    def clear(self, slot: int) -> None:
        """An engine is gone or has lost its cache."""
        engine = self._engines.pop(slot, None)
        if engine:
            engine.cache.forget_packed()
            self._drop(slot, engine.cache)

    def _engine(self, slot: int, capacity: int) -> EstimatedCache:
        engine = self._engines.get(slot)
        if engine is None:
            shadow = EngineRadixCache(capacity, self._max_blocks, 1 << slot, self._packed, partial(self._hold, slot))
            engine = self._engines[slot] = EstimatedCache(shadow, capacity, created_turn=self._turns)
        return engine

    def _engine_of(self, trace: CacheInsertion) -> EstimatedCache | None:
        engine = self._engines.get(trace.slot)
        return engine if engine and engine.created_turn < trace.turn else None

    def _unpack(self, prompt: Prompt, among: int) -> None:
        """Unpack what engines of `among` hold of a prompt."""
        packed, blocks = self._packed, prompt.blocks
        for first in blocks:
            mask = packed.get(first, 0) & among
            while mask:
                slot = mask.bit_length() - 1
                mask ^= 1 << slot
                self._engines[slot].cache.unpack(blocks)

    def _use(self, slot: int, engine: EstimatedCache, prompt: Prompt) -> PrefixUse:
        use = engine.cache.insert(prompt, engine.turn)
        if fresh := prompt.blocks[use.cached_blocks :]:
            self._hold(slot, fresh)
        return use

    def _hold(self, slot: int, blocks: tuple[int, ...]) -> None:
        bit, holders = 1 << slot, self._holders
        # Behind a block that no engine holds, none holds any.
        known = bisect_left(blocks, True, key=lambda block: block not in holders)
        for block in blocks[:known]:
            holders[block] = holders.get(block, 0) | bit
        holders.update(dict.fromkeys(blocks[known:], bit))

    def _drop(self, slot: int, blocks: Iterable[int]) -> None:
        bit, holders = 1 << slot, self._holders
        for block in blocks:
            # Nearly always no other engine holds it.
            left = holders.pop(block, 0) & ~bit
            if left:
                holders[block] = left


def _late(ends: Sequence[int], found: PrefixUse, turn: int, next_to_go: int) -> int:
    """How much of what was found was last used in the older half of what the engine holds."""
    half_turn, late, before = (turn + next_to_go) / 2, 0, 0
    for blocks, used in found.earlier:
        end = ends[blocks - 1]
        if used < half_turn:
            late += end - before
        before = end
    return late


def last_block_of_prefix(prompt: Prompt, size: int) -> int:
    """Return the last block of a prompt's first `size`."""
    return prompt.blocks[bisect_left(prompt.ends, size, 0, len(prompt.blocks))]


def cached_and_work(
    walked: Sequence[tuple[int, int]],
    eligible: EligibleEngines,
    ruler: PromptTokenEstimate,
    prompt_tokens: float,
    growth: float,
) -> tuple[list[float], list[float]]:
    """Cached tokens and prefill work of every engine, from (mask of engines, size held), computed once per group."""
    cold = eligible.mask
    for mask, _ in walked:
        cold ^= mask
    # What most of them hold (nothing, or a common system prompt) is filled in for all, the rest one by one.
    groups = sorted([*walked, (cold, 0)] if cold else walked, key=_engines_in, reverse=True)
    warm_tokens: list[float] = []
    work: list[float] = []
    for mask, size in groups:
        # The last token is always computed, and only whole KV blocks are reused.
        warm = max(0.0, min(ruler.tokens(size), prompt_tokens - 1)) // eligible.block_tokens * eligible.block_tokens
        cold_work = prefill_work(prompt_tokens - warm, prompt_tokens, growth)
        if not work:
            warm_tokens = [warm] * len(eligible.engines)
            work = [cold_work] * len(eligible.engines)
            continue
        for position in eligible.positions(mask):
            warm_tokens[position] = warm
            work[position] = cold_work
    return warm_tokens, work


def _engines_in(group: tuple[int, int]) -> int:
    return group[0].bit_count()
