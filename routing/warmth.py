"""Which engine holds which prefix: block hash to a set of engines as a bit mask, fed by one shadow cache per engine.

A shadow cache is what we sent to an engine, kept as an LRU as large as the engine's own KV cache, so that it forgets
when the engine forgets. The real `cached_tokens` of every answer corrects it. Sizes are in the unit of `Prompt.size`.
Knows nothing of load and makes no choice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from routing.blocks import Prompt

SLACK = 0.1
"""A prefix counts as lost only when the engine reused this share less than predicted: bytes are not tokens."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One prompt put on one engine: what to take back when the engine never computed it, and what to correct."""

    slot: int
    turn: int
    prompt: Prompt
    warm_blocks: int
    earlier_turns: tuple[int, ...]
    """For each block that was warm already: the turn that had last used it."""
    unfinished_turns: frozenset[int]
    """Turns whose prefill had not ended when this one was put: what they share may honestly be still cold."""


class ShadowCache:
    """What one engine should be holding: block hash to the turn that last used it, least recently used first."""

    __slots__ = ("blocks", "capacity", "most_blocks", "nominal_capacity", "turn", "unfinished", "used", "weights")

    def __init__(self, capacity: int, most_blocks: int) -> None:
        self.blocks: OrderedDict[int, int] = OrderedDict()
        self.weights: dict[int, int] = {}
        self.used = 0
        self.nominal_capacity = capacity
        self.capacity = capacity
        self.most_blocks = most_blocks
        self.turn = 0
        self.unfinished: set[int] = set()

    def is_full(self) -> bool:
        return self.used > self.capacity or len(self.blocks) > self.most_blocks


class WarmIndex:
    """Answers, in one walk down a prompt, how much of it every engine already holds."""

    def __init__(self, *, most_blocks_per_engine: int = 1 << 16) -> None:
        self._holders: dict[int, int] = {}
        self._shadows: dict[int, ShadowCache] = {}
        self._most_blocks = most_blocks_per_engine
        self._turns = 0

    def __repr__(self) -> str:
        return f"<WarmIndex {len(self._holders)} blocks on {len(self._shadows)} engines>"

    def __len__(self) -> int:
        return len(self._holders)

    def resize(self, slot: int, capacity: int) -> None:
        """Say how much an engine's KV cache holds. A cache that became smaller forgets at once."""
        shadow = self._shadows.get(slot)
        if shadow is None:
            self._shadows[slot] = ShadowCache(capacity, self._most_blocks)
        elif capacity != shadow.nominal_capacity:
            shadow.nominal_capacity = capacity
            shadow.capacity = capacity
            self._shrink(slot, shadow)

    def size_of(self, slot: int) -> int:
        """How much we believe an engine holds."""
        shadow = self._shadows.get(slot)
        return shadow.used if shadow else 0

    def walk(self, prompt: Prompt, among: int) -> Iterator[tuple[int, int]]:
        """Yield (mask of engines, warm size) for the engines of `among` that hold some of the prompt's beginning.

        One dictionary look-up a block; an engine leaves the walk at its first missing block.
        """
        holders, ends = self._holders, prompt.ends
        alive, depth = among, 0
        for depth, block in enumerate(prompt.blocks):
            still = holders.get(block, 0) & alive
            if still != alive:
                if depth:
                    yield alive ^ still, ends[depth - 1]
                alive = still
                if not alive:
                    return
        if prompt.blocks:
            yield alive, ends[depth]

    def put(self, slot: int, prompt: Prompt) -> Trace:
        """Record that an engine is given this prompt now, and will hold all of its full blocks."""
        shadow = self._shadows.get(slot)
        if shadow is None:
            shadow = self._shadows[slot] = ShadowCache(0, self._most_blocks)
        self._turns += 1
        shadow.turn = self._turns
        unfinished = frozenset(shadow.unfinished)
        shadow.unfinished.add(shadow.turn)
        earlier = self._warm_turns(shadow, prompt)
        self._touch(slot, shadow, prompt, shadow.turn)
        self._shrink(slot, shadow)
        return Trace(slot, shadow.turn, prompt, len(earlier), earlier, unfinished)

    def computed(self, trace: Trace) -> None:
        """The engine has the whole prompt: its first token is out."""
        shadow = self._shadows.get(trace.slot)
        if shadow:
            shadow.unfinished.discard(trace.turn)

    def retract(self, trace: Trace) -> None:
        """The engine was never seen to compute this prompt: forget what only this turn had promised."""
        shadow = self._shadows.get(trace.slot)
        if shadow is None or trace.turn not in shadow.unfinished:
            return
        shadow.unfinished.discard(trace.turn)
        for block in trace.prompt.blocks[trace.warm_blocks :]:
            if shadow.blocks.get(block) == trace.turn:
                self._drop(trace.slot, shadow, block)

    def grow(self, trace: Trace, prompt: Prompt) -> None:
        """The engine has also decoded an answer: it holds `prompt`, which begins with the trace's own prompt."""
        shadow = self._shadows.get(trace.slot)
        if shadow and shadow.turn >= trace.turn:
            self._touch(trace.slot, shadow, prompt, shadow.turn)
            self._shrink(trace.slot, shadow)

    def correct(self, trace: Trace, real_size: float) -> bool:
        """Learn from how much of the prompt the engine really reused. True where it had forgotten some of it.

        Engines forget the least recently used first: if a block last used in turn t was gone, so is all that was last
        used before t. A shadow that was too large for its engine also becomes smaller, and recovers slowly.
        """
        shadow = self._shadows.get(trace.slot)
        if shadow is None or shadow.turn < trace.turn or not trace.warm_blocks:
            return False
        ends = trace.prompt.ends
        promised = ends[trace.warm_blocks - 1]
        if real_size >= promised * (1 - SLACK):
            shadow.capacity = min(shadow.nominal_capacity, shadow.capacity + shadow.nominal_capacity // 100)
            return False
        lost = next(index for index in range(trace.warm_blocks) if ends[index] > real_size)
        lost_turn = trace.earlier_turns[lost]
        if lost_turn in trace.unfinished_turns:
            return False
        self._forget_before(trace.slot, shadow, lost_turn)
        shadow.capacity = (9 * shadow.capacity + min(shadow.used, shadow.capacity)) // 10
        return True

    def forget(self, slot: int) -> None:
        """An engine is gone or has lost its cache."""
        shadow = self._shadows.pop(slot, None)
        for block in shadow.blocks if shadow else ():
            self._release(slot, block)

    @staticmethod
    def _warm_turns(shadow: ShadowCache, prompt: Prompt) -> tuple[int, ...]:
        turns = []
        for block in prompt.blocks:
            turn = shadow.blocks.get(block)
            if turn is None:
                break
            turns.append(turn)
        return tuple(turns)

    def _touch(self, slot: int, shadow: ShadowCache, prompt: Prompt, turn: int) -> None:
        """Deepest first, so that the head of a chain is the last to be forgotten, as in the engine."""
        bit, blocks, ends = 1 << slot, shadow.blocks, prompt.ends
        for index in range(len(prompt.blocks) - 1, -1, -1):
            block = prompt.blocks[index]
            if block in blocks:
                blocks.move_to_end(block)
            else:
                weight = ends[index] - (ends[index - 1] if index else 0)
                shadow.weights[block] = weight
                shadow.used += weight
                self._holders[block] = self._holders.get(block, 0) | bit
            blocks[block] = turn

    def _shrink(self, slot: int, shadow: ShadowCache) -> None:
        while shadow.blocks and shadow.is_full():
            self._drop(slot, shadow, next(iter(shadow.blocks)))

    def _forget_before(self, slot: int, shadow: ShadowCache, turn: int) -> None:
        while shadow.blocks:
            block = next(iter(shadow.blocks))
            if shadow.blocks[block] >= turn:
                return
            self._drop(slot, shadow, block)

    def _drop(self, slot: int, shadow: ShadowCache, block: int) -> None:
        del shadow.blocks[block]
        shadow.used -= shadow.weights.pop(block)
        self._release(slot, block)

    def _release(self, slot: int, block: int) -> None:
        left = self._holders[block] & ~(1 << slot)
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]
