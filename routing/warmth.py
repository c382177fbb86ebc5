"""Which engine holds which prefix: block hash to a set of engines as a bit mask, fed by one shadow cache per engine.

A shadow cache is what we sent to an engine, kept as an LRU as large as the engine's own KV cache, so that it forgets
when the engine forgets. The real `cached_tokens` of every answer corrects it. Sizes are in the unit of `Prompt.size`.
Knows nothing of load and makes no choice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from routing.blocks import Prompt
from routing.reuse import Reuse
from routing.shadow import ShadowCache, Use

RESIZE_SHARE = 0.05
"""Sizes are bytes reckoned from tokens by a learned ratio: smaller changes than this are its noise."""

SLACK = 0.1
"""A prefix counts as lost only when the engine reused this share less than predicted: bytes are not tokens."""


class Trace(Struct, frozen=True, gc=False):
    """One prompt put on one engine: what to take back when the engine never computed it, and what to correct."""

    slot: int
    turn: int
    prompt: Prompt
    found: Use
    """What the engine held of it before."""
    unfinished_turns: frozenset[int]
    """Turns whose prefill had not ended when this one was put: what they share may honestly be still cold."""

    @property
    def is_ahead(self) -> bool:
        """Whether what was found is still being computed: nobody has it any sooner."""
        return self.found.born in self.unfinished_turns


@dataclass(slots=True)
class Believed:
    """What we believe of one engine's cache."""

    shadow: ShadowCache
    nominal_capacity: int
    born: int
    """The last turn of all before it was first known, or last forgotten: traces from then say nothing of it."""
    turn: int = 0
    """The last one in which it was given a prompt."""
    unfinished: set[int] = field(default_factory=set)


class WarmIndex:
    """Answers, in one walk down a prompt, how much of it every engine already holds."""

    def __init__(self, *, most_blocks_per_engine: int = 1 << 16) -> None:
        self._holders: dict[int, int] = {}
        self._engines: dict[int, Believed] = {}
        self._most_blocks = most_blocks_per_engine
        self.reuse = Reuse()
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
        shadow = engine.shadow
        shadow.capacity = shadow.capacity * capacity // before if before else capacity
        engine.nominal_capacity = capacity
        self._drop(slot, shadow.shrink())

    def size_of(self, slot: int) -> int:
        """How much we believe an engine holds."""
        engine = self._engines.get(slot)
        return engine.shadow.used if engine else 0

    def walk(self, prompt: Prompt, among: int) -> list[tuple[int, int]]:
        """(mask of engines, warm size) of the engines of `among` that hold some of the prompt's beginning.

        Whoever holds a block holds all before it, so where engines leave the walk is found by bisection; and a single
        engine that is left knows by its own tree how far it goes, which is where it would be given the prompt.
        """
        holders, blocks, ends = self._holders, prompt.blocks, prompt.ends
        walked: list[tuple[int, int]] = []
        alive, depth = holders.get(blocks[0], 0) & among if blocks else 0, 1
        while alive:
            if not alive & (alive - 1):
                walked.append((alive, ends[self._engines[alive.bit_length() - 1].shadow.depth(blocks) - 1]))
                break

            def some_have_left(block: int, alive: int = alive) -> bool:
                return holders.get(block, 0) & alive != alive

            depth = bisect_left(blocks, True, depth, key=some_have_left)
            still = holders.get(blocks[depth], 0) & alive if depth < len(blocks) else 0
            walked.append((alive ^ still, ends[depth - 1]))
            alive = still
        return walked

    def put(self, slot: int, prompt: Prompt) -> Trace:
        """Record that an engine is given this prompt now, and will hold all of its full blocks.

        What they displace is forgotten when the engine has computed them: until then it still stands there.
        """
        engine = self._engine(slot, 0)
        self._turns += 1
        engine.turn = self._turns
        unfinished = frozenset(engine.unfinished)
        engine.unfinished.add(engine.turn)
        next_to_go = engine.shadow.next_to_go
        found = self._use(slot, engine, prompt)
        self._learn_reuse(prompt, found, engine.turn, next_to_go)
        return Trace(slot, engine.turn, prompt, found, unfinished)

    def computed(self, trace: Trace) -> None:
        """The engine has the whole prompt: its first token is out."""
        engine = self._engine_of(trace)
        if engine:
            engine.unfinished.discard(trace.turn)
            self._shrink(trace.slot, engine)

    def retract(self, trace: Trace) -> None:
        """The engine was never seen to compute this prompt: forget what only this turn had promised."""
        engine = self._engine_of(trace)
        if engine is None or trace.turn not in engine.unfinished:
            return
        engine.unfinished.discard(trace.turn)
        self._drop(trace.slot, engine.shadow.retract(trace.prompt, trace.turn, trace.found.warm_blocks))
        if not engine.unfinished:
            # What nobody is computing any more, but later requests were told to be there, may have stayed.
            self._shrink(trace.slot, engine)

    def grow(self, trace: Trace, prompt: Prompt) -> None:
        """The engine has also decoded an answer: it holds `prompt`, which begins with the trace's own prompt."""
        engine = self._engine_of(trace)
        if engine:
            self._use(trace.slot, engine, prompt)
            self._shrink(trace.slot, engine)

    def correct(self, trace: Trace, real_size: float) -> bool:
        """Learn from how much of a prompt the engine really reused. True where it had forgotten what we believed warm.

        Engines forget the least recently used first: if a block last used in turn t was gone, so is all that was last
        used before t. A shadow that was too large for its engine also becomes smaller, and recovers slowly.
        """
        engine, ends, warm_blocks = self._engine_of(trace), trace.prompt.ends, trace.found.warm_blocks
        if engine is None or not warm_blocks:
            return False
        shadow = engine.shadow
        if real_size >= ends[warm_blocks - 1] * (1 - SLACK):
            shadow.capacity = min(engine.nominal_capacity, shadow.capacity + engine.nominal_capacity // 100)
            return False
        lost_turn = next(turn for end, turn in trace.found.earlier if ends[end - 1] > real_size)
        if lost_turn in trace.unfinished_turns:
            return False
        self._drop(trace.slot, shadow.forget_before(lost_turn))
        shadow.capacity = (9 * shadow.capacity + min(shadow.used, shadow.capacity)) // 10
        return True

    def forget(self, slot: int) -> None:
        """An engine is gone or has lost its cache."""
        engine = self._engines.pop(slot, None)
        self._drop(slot, engine.shadow if engine else ())

    def _engine(self, slot: int, capacity: int) -> Believed:
        engine = self._engines.get(slot)
        if engine is None:
            shadow = ShadowCache(capacity, self._most_blocks)
            engine = self._engines[slot] = Believed(shadow, capacity, born=self._turns)
        return engine

    def _engine_of(self, trace: Trace) -> Believed | None:
        engine = self._engines.get(trace.slot)
        return engine if engine and engine.born < trace.turn else None

    def _use(self, slot: int, engine: Believed, prompt: Prompt) -> Use:
        use = engine.shadow.use(prompt, engine.turn)
        if fresh := prompt.blocks[use.warm_blocks :]:
            self._hold(slot, fresh)
        return use

    def _learn_reuse(self, prompt: Prompt, found: Use, turn: int, next_to_go: int | None) -> None:
        ends, warm = prompt.ends, found.warm_blocks
        computed = prompt.size - (ends[warm - 1] if warm else 0)
        self.reuse.observe(computed, _late(ends, found, turn, next_to_go))

    def _shrink(self, slot: int, engine: Believed) -> None:
        if dropped := engine.shadow.shrink():
            self._drop(slot, dropped)

    def _hold(self, slot: int, blocks: tuple[int, ...]) -> None:
        bit, holders = 1 << slot, self._holders
        # Nobody holds what stands behind a block that nobody holds.
        known = bisect_left(blocks, True, key=lambda block: block not in holders)
        for block in blocks[:known]:
            holders[block] = holders.get(block, 0) | bit
        holders.update(dict.fromkeys(blocks[known:], bit))

    def _drop(self, slot: int, blocks: Iterable[int]) -> None:
        bit, holders = 1 << slot, self._holders
        for block in blocks:
            left = holders.get(block, 0) & ~bit
            if left:
                holders[block] = left
            else:
                holders.pop(block, None)


def _late(ends: Sequence[int], found: Use, turn: int, next_to_go: int | None) -> int:
    """How much of what was found was last used in the older half of what the engine holds."""
    if next_to_go is None:
        return 0
    half_turn, late, before = (turn + next_to_go) / 2, 0, 0
    for blocks, used in found.earlier:
        end = ends[blocks - 1]
        if used < half_turn:
            late += end - before
        before = end
    return late
