"""The approximate prefix index: which engine holds which prompt prefix, from what was sent to it.

Per engine a radix tree of prompts, evicted least recently used first within the engine's KV capacity, so that it
forgets when the engine forgets; over all engines a map of block hash to a bit mask. The `cached_tokens` of each
response correct it. Sizes are in the unit of `Prompt.size`; a turn (a counter) stands for time. Independent of load
and makes no choice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import log

from msgspec import Struct

from routing.blocks import Prompt
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
        """How much must be computed again, in the end, for each token that is displaced."""
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

    __slots__ = ("blocks", "children", "created_turn", "end", "ends", "parent", "start", "turn")

    def __init__(
        self, blocks: tuple[int, ...], start: int, ends: Sequence[int], parent: RadixNode | None, turn: int
    ) -> None:
        self.blocks = blocks
        self.start = start
        self.end = start + len(blocks)
        """How many blocks a prompt has up to where this run ends."""
        self.ends = ends
        self.parent = parent or self
        self.turn = turn
        self.created_turn = turn
        """The turn in which its first block came."""
        self.children: dict[int, RadixNode] = {}
        """By their first block."""

    def shared_with(self, blocks: Sequence[int]) -> int:
        """How many of this run's blocks the prompt of these blocks has too; the first is known to be."""
        own, start = self.blocks, self.start
        end = self.end
        if end <= len(blocks) and own[-1] == blocks[end - 1]:
            return len(own)
        reach = range(min(len(own), len(blocks) - start))
        return bisect_left(reach, True, key=lambda index: own[index] != blocks[start + index])

    def size_from(self, keep: int) -> int:
        """The size of all blocks but the first `keep`."""
        kept_end = self.start + keep
        return self.ends[self.end - 1] - (self.ends[kept_end - 1] if kept_end else 0)


class PrefixUse(Struct, frozen=True, gc=False):
    """What using a prompt found: how many of its blocks were there, and when each stretch of them was used before."""

    cached_blocks: int
    earlier: tuple[tuple[int, int], ...]
    """(blocks up to the stretch's end, turn that had last used it), from the prompt's beginning on."""
    created_turn: int
    """The turn in which the last of them came."""


class EngineRadixCache:
    """One engine's prompts. Turns are given by the caller and only grow; what is dropped is returned to the caller."""

    __slots__ = ("_block_count", "_max_blocks", "_oldest_first", "_root", "capacity", "used")

    def __init__(self, capacity: int, max_blocks: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._max_blocks = max_blocks
        self._block_count = 0
        self._root = RadixNode((), 0, (), None, 0)
        self._oldest_first: OrderedDict[RadixNode, None] = OrderedDict()

    def __len__(self) -> int:
        return self._block_count

    def __iter__(self) -> Iterator[int]:
        """All blocks held, those forgotten first foremost."""
        for run in self._oldest_first:
            yield from reversed(run.blocks)

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

    def evict(self) -> list[int]:
        """Forget the least recently used blocks until the rest fits; returns them."""
        dropped: list[int] = []
        while self.used > self.capacity or self._block_count > self._max_blocks:
            oldest = next(iter(self._oldest_first))
            fits = oldest.ends[oldest.end - 1] - (self.used - self.capacity)
            keep = bisect_right(oldest.ends, fits, oldest.start, oldest.end) - oldest.start
            keep = min(keep, len(oldest.blocks) - (self._block_count - self._max_blocks))
            dropped += self._cut(oldest, max(0, keep))
        return dropped

    def forget_before(self, turn: int) -> list[int]:
        """Forget all that was last used before a turn; returns it."""
        dropped: list[int] = []
        while self._oldest_first:
            oldest = next(iter(self._oldest_first))
            if oldest.turn >= turn:
                break
            dropped += self._cut(oldest, 0)
        return dropped

    def retract(self, prompt: Prompt, turn: int, warm_blocks: int) -> list[int]:
        """Forget what only `turn` had predicted of a prompt, beyond the `warm_blocks` held before; return it."""
        dropped: list[int] = []
        for run in reversed(self._path(prompt.blocks)):
            if run.turn != turn or run.children or run.end <= warm_blocks:
                break
            dropped += self._cut(run, max(0, warm_blocks - run.start))
        return dropped

    def _path(self, blocks: Sequence[int], *, splitting: bool = False) -> list[RadixNode]:
        """The runs that a prompt goes through whole; one that it leaves in the middle where that is to be split."""
        path: list[RadixNode] = []
        children, end, length = self._root.children, 0, len(blocks)
        while end < length:
            child = children.get(blocks[end])
            if child is None:
                break
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
        upper = RadixNode(run.blocks[:keep], run.start, run.ends, run.parent, run.turn)
        upper.created_turn = run.created_turn
        self._oldest_first[upper] = None
        run.parent.children[run.blocks[0]] = upper
        run.parent, run.blocks, run.start = upper, run.blocks[keep:], run.start + keep
        upper.children[run.blocks[0]] = run
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
        """Drop all blocks of a run but the first `keep`; returns them. Nothing may follow the run."""
        dropped = run.blocks[keep:]
        self.used -= run.size_from(keep)
        self._block_count -= len(dropped)
        if keep:
            run.blocks = run.blocks[:keep]
            run.end = run.start + keep
        else:
            del run.parent.children[run.blocks[0]]
            del self._oldest_first[run]
        return dropped


RESIZE_SHARE = 0.05
"""Sizes are bytes computed from tokens by a learned ratio: smaller changes than this are its noise."""

PREDICTION_SLACK = 0.1
"""A prefix counts as lost only when the engine reused this share less than predicted: bytes are not tokens."""


NO_TURNS: frozenset[int] = frozenset()


class CacheInsertion(Struct, frozen=True, gc=False):
    """One prompt put on one engine: what to take back when the engine never computed it, and what to correct."""

    slot: int
    turn: int
    prompt: Prompt
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
        self._engines: dict[int, EstimatedCache] = {}
        self._max_blocks = max_blocks_per_engine
        self.reuse = ReuseRate()
        self._turns = 0

    def __repr__(self) -> str:
        return f"<WarmIndex {len(self._holders)} blocks on {len(self._engines)} engines>"

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
        self._turns += 1
        engine.turn = self._turns
        next_to_go = engine.cache.next_evicted_turn
        found = self._use(slot, engine, prompt)
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
        engine = self._engine_of(trace)
        if engine:
            engine.unfinished.discard(trace.turn)
            if dropped := engine.cache.evict():
                self._drop(trace.slot, dropped)

    def retract(self, trace: CacheInsertion) -> None:
        """Forget what only this turn had predicted: the engine never reported to have computed this prompt."""
        engine = self._engine_of(trace)
        if engine is None or trace.turn not in engine.unfinished:
            return
        engine.unfinished.discard(trace.turn)
        self._drop(trace.slot, engine.cache.retract(trace.prompt, trace.turn, trace.found.cached_blocks))
        if not engine.unfinished:
            # Blocks may remain that later requests counted on though no request computes them any more.
            self._drop(trace.slot, engine.cache.evict())

    def extend(self, trace: CacheInsertion, prompt: Prompt) -> None:
        """The engine has also decoded an answer: it holds `prompt`, which begins with the trace's own prompt."""
        engine = self._engine_of(trace)
        if engine:
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
        self._drop(slot, engine.cache if engine else ())

    def _engine(self, slot: int, capacity: int) -> EstimatedCache:
        engine = self._engines.get(slot)
        if engine is None:
            shadow = EngineRadixCache(capacity, self._max_blocks)
            engine = self._engines[slot] = EstimatedCache(shadow, capacity, created_turn=self._turns)
        return engine

    def _engine_of(self, trace: CacheInsertion) -> EstimatedCache | None:
        engine = self._engines.get(trace.slot)
        return engine if engine and engine.created_turn < trace.turn else None

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
