"""What an engine remembers of one sequence, and the queue of those that wait. Must not know of steps' times."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from simulator.paged_cache import PagedCache
from simulator.sequence import Milestone, MilestoneKind, Sequence, derived_blocks


@dataclass(slots=True, eq=False)
class Live:
    """One submitted sequence. While it decodes, its tokens are a difference of token counts: no step touches them.

    `computed` tokens have their KV, `emitted` output tokens were sampled; both are unchanged while it decodes and are
    brought up to date by `stop_decoding`.
    """

    spec: Sequence
    rank: tuple[int, int]
    """Order of service, earliest first."""
    target: int
    """Tokens whose KV must exist before the next token can be sampled."""
    prompt_blocks: int
    """Full blocks of its prompt."""
    computed: int = 0
    emitted: int = 0
    joined_at: int = -1
    """The token count of the batch at which it began to decode; -1 while it does not."""
    aborted: bool = False
    admitted_at: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    held: list[int] = field(default_factory=list)
    """Ids of the cached blocks it holds, in chain order."""
    named: int = 0
    """Leading blocks that were offered to the cache."""
    blocks: int = 0
    """Blocks it was admitted with and took for its chunks, ids or not."""
    host: int = 0
    """Leading tokens that come from the host's memory, or came."""
    remote: int = 0
    """Leading tokens still to be fetched from another engine; once they came or failed to, what is lost is computed."""

    def chain(self, blocks: int) -> tuple[int, ...]:
        """Ids of its first `blocks` full blocks: its caller's, then derived ones; none behind a gap in the prompt's."""
        if self.spec.answer_blocks is not None:
            return self.spec.answer_blocks(blocks)
        known = self.spec.blocks[:blocks]
        if len(known) == blocks or not known or len(known) < self.prompt_blocks:
            return known
        return known + derived_blocks(known[-1], blocks - len(known))

    def stop_decoding(self, count: int) -> int:
        """Count its tokens up to a token count of the batch. Return those that speculation made beyond its last one."""
        tokens = count - self.joined_at
        self.computed += tokens
        self.joined_at = -1
        excess = max(self.emitted + tokens - self.spec.output_tokens, 0)
        self.emitted += tokens - excess
        return excess

    @property
    def kept(self) -> int:
        """Tokens whose KV another sequence may use: without what speculation made beyond its last one."""
        return min(self.computed, self.spec.prompt_tokens + max(self.spec.output_tokens - 1, 0))

    def leave(self, cache: PagedCache, block_size: int) -> None:
        """Give all its blocks back; those whose content is known stay in the cache, idle."""
        answered = self.chain(self.kept // block_size)[self.named :]
        holds = max(self.blocks, -(-self.computed // block_size))
        cache.retire(answered, holds - len(self.held) - len(answered))
        cache.release(self.held)
        self.held = []
        self.named = self.blocks = self.computed = 0

    def milestone(self, kind: MilestoneKind, at: float, reason: str = "") -> Milestone:
        """Its milestone as it stands now."""
        return Milestone(
            kind=kind,
            sequence_id=self.spec.sequence_id,
            at=at,
            output_tokens=self.emitted,
            cached_tokens=self.cached_tokens,
            admitted_at=self.admitted_at,
            preemptions=self.preemptions,
            reason=reason,
        )


class WaitingQueue:
    """Those not running, in order of service; a preempted sequence keeps the place it came with."""

    __slots__ = ("_heap", "_waiting")

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Live]] = []
        self._waiting: set[Live] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, live: Live) -> None:
        """Queue it."""
        heappush(self._heap, (live.rank, live))
        self._waiting.add(live)

    def discard(self, live: Live) -> None:
        """Remove it from the queue, if it waits."""
        self._waiting.discard(live)

    def head(self) -> Live | None:
        """Return the next sequence."""
        heap = self._heap
        while heap and heap[0][1] not in self._waiting:
            heappop(heap)
        return heap[0][1] if heap else None

    def pop(self) -> None:
        """Take the head out."""
        self._waiting.remove(heappop(self._heap)[1])
