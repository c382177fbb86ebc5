"""What one engine should be holding: the prompts sent to it as a tree of runs, forgotten least recently used first.

A run is a stretch of blocks that were last used in the same turn; a prompt that leaves a run in its middle splits it.
So using a prompt costs a step per run, of which a conversation has a handful, not one per block. Whoever holds a block
holds all before it, and equal hashes mean equal prefixes: runs are compared by their last block.

Knows one engine only, and nothing of load.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from routing.blocks import Prompt

FULL = 0.9
"""From this share of its capacity on a cache is taken to be full: what runs holds room besides."""


class Run:
    """Consecutive blocks, `start` blocks into every prompt that contains them, and the runs that follow them."""

    __slots__ = ("blocks", "born", "children", "end", "ends", "parent", "start", "turn")

    def __init__(self, blocks: tuple[int, ...], start: int, ends: Sequence[int], parent: Run | None, turn: int) -> None:
        self.blocks = blocks
        self.start = start
        self.end = start + len(blocks)
        """How many blocks a prompt has up to where this run ends."""
        self.ends = ends
        self.parent = parent or self
        self.turn = turn
        self.born = turn
        """The turn in which its first block came."""
        self.children: dict[int, Run] = {}
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


class Use(Struct, frozen=True, gc=False):
    """What using a prompt found: how many of its blocks were there, and when each stretch of them was used before."""

    warm_blocks: int
    earlier: tuple[tuple[int, int], ...]
    """(blocks up to the stretch's end, turn that had last used it), from the prompt's beginning on."""
    born: int
    """The turn in which the last of them came."""


class ShadowCache:
    """One engine's prompts. Turns are given by the caller and only grow; what is dropped is returned to the caller."""

    __slots__ = ("_block_count", "_most_blocks", "_oldest_first", "_root", "capacity", "used")

    def __init__(self, capacity: int, most_blocks: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._most_blocks = most_blocks
        self._block_count = 0
        self._root = Run((), 0, (), None, 0)
        self._oldest_first: OrderedDict[Run, None] = OrderedDict()

    def __len__(self) -> int:
        return self._block_count

    def __iter__(self) -> Iterator[int]:
        """All blocks held, those forgotten first foremost."""
        for run in self._oldest_first:
            yield from reversed(run.blocks)

    @property
    def next_to_go(self) -> int | None:
        """When what would be forgotten next was last used; None where there is room yet."""
        if self.used < FULL * self.capacity or not self._oldest_first:
            return None
        return next(iter(self._oldest_first)).turn

    def depth(self, blocks: Sequence[int]) -> int:
        """How many of a prompt's blocks are held."""
        path = self._path(blocks)
        last = path[-1] if path else self._root
        following = last.children.get(blocks[last.end]) if last.end < len(blocks) else None
        return last.end + (following.shared_with(blocks) if following else 0)

    def use(self, prompt: Prompt, turn: int) -> Use:
        """Hold all blocks of a prompt, as last used in `turn`.

        Deepest first, so that the head of a chain is the last to be forgotten, as in the engine.
        """
        path = self._path(prompt.blocks, splitting=True)
        last = path[-1] if path else self._root
        use = Use(last.end, tuple([(run.end, run.turn) for run in path]), last.born)
        if use.warm_blocks < len(prompt.blocks):
            self._append(path, prompt, use.warm_blocks, turn)
        now_newest = self._oldest_first.move_to_end
        for run in reversed(path):
            run.turn = turn
            now_newest(run)
        return use

    def shrink(self) -> list[int]:
        """Forget the least recently used blocks until the rest fits; returns them."""
        dropped: list[int] = []
        while self.used > self.capacity or self._block_count > self._most_blocks:
            oldest = next(iter(self._oldest_first))
            fits = oldest.ends[oldest.end - 1] - (self.used - self.capacity)
            keep = bisect_right(oldest.ends, fits, oldest.start, oldest.end) - oldest.start
            keep = min(keep, len(oldest.blocks) - (self._block_count - self._most_blocks))
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
        """Forget what only `turn` had promised of a prompt, beyond the blocks that were there before; returns it."""
        dropped: list[int] = []
        for run in reversed(self._path(prompt.blocks)):
            if run.turn != turn or run.children or run.end <= warm_blocks:
                break
            dropped += self._cut(run, max(0, warm_blocks - run.start))
        return dropped

    def _path(self, blocks: Sequence[int], *, splitting: bool = False) -> list[Run]:
        """The runs that a prompt goes through whole; one that it leaves in the middle where that is to be split."""
        path: list[Run] = []
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

    def _split(self, run: Run, keep: int) -> Run:
        """Cut a run in two; returns the upper part."""
        upper = Run(run.blocks[:keep], run.start, run.ends, run.parent, run.turn)
        upper.born = run.born
        self._oldest_first[upper] = None
        run.parent.children[run.blocks[0]] = upper
        run.parent, run.blocks, run.start = upper, run.blocks[keep:], run.start + keep
        upper.children[run.blocks[0]] = run
        return upper

    def _append(self, path: list[Run], prompt: Prompt, warm: int, turn: int) -> None:
        """Put the blocks beyond the first `warm` behind the path: into its last run where nothing else follows that."""
        last = path[-1] if path else self._root
        fresh = prompt.blocks[warm:]
        if path and not last.children:
            last.blocks += fresh
            last.end = len(prompt.blocks)
            last.ends = prompt.ends
        else:
            last.children[fresh[0]] = run = Run(fresh, warm, prompt.ends, last, turn)
            self._oldest_first[run] = None
            path.append(run)
        self.used += prompt.covered - (prompt.ends[warm - 1] if warm else 0)
        self._block_count += len(fresh)

    def _cut(self, run: Run, keep: int) -> tuple[int, ...]:
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
