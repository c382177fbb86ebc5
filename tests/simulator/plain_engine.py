"""The engine once more, as slow and as plain as can be: every step, every sequence, every block, one after the other.

What the real one does with sums, heaps and arithmetic series must come out the same here. Shares only the cache and the
values with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.paged_cache import PagedCache
from simulator.profile import Profile
from simulator.sequence import Sequence, derived_blocks


@dataclass(eq=False)
class Plain:
    """One sequence."""

    spec: Sequence
    rank: tuple[int, int]
    computed: int = 0
    emitted: int = 0
    held: list[int] = field(default_factory=list)
    named: int = 0
    blocks: int = 0
    state: str = "waiting"
    aborted: bool = False
    cached: int = 0
    admitted: bool = False
    has_first: bool = False
    preemptions: int = 0
    target: int = 0


@dataclass(frozen=True)
class Event:
    """What a milestone says, times aside."""

    at: float
    kind: str
    sequence_id: str
    output_tokens: int
    cached_tokens: int
    preemptions: int
    reason: str


class PlainEngine:
    """One step at a time, from `play_step` to `play_step`."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.cache = PagedCache(profile.kv_blocks)
        self.all: list[Plain] = []
        self.events: list[Event] = []
        self.ends_at: float | None = None
        """When the next boundary is."""
        self._starts_at = 0.0
        """When what is planned there begins."""
        self._outputs: list[tuple[Plain, int, bool]] = []
        """Tokens on their way, and whether the sequence ends with it."""
        self._steps = 0
        self._drains = False
        self._is_async = profile.async_scheduling
        self._chunks: dict[Plain, int] = {}
        self._decoding: list[Plain] = []
        self._arrivals = 0

    def submit(self, spec: Sequence, now: float) -> None:
        order = spec.priority if self.profile.by_priority else 0
        self.all.append(Plain(spec, (order, self._arrivals), target=spec.prompt_tokens))
        self._arrivals += 1
        if self.ends_at is None:
            self._plan(now + self.profile.wake_s, now + self.profile.wake_s)

    def abort(self, sequence_id: str) -> None:
        for plain in self.all:
            if plain.spec.sequence_id == sequence_id:
                plain.aborted = True

    def play_until(self, until: float) -> None:
        while self.ends_at is not None and self.ends_at <= until:
            self._finish_step(self.ends_at)

    def _each(self) -> int:
        """Tokens that a decoding sequence gains in the next step."""
        rate = sum(self.profile.acceptance_rate**place for place in range(self.profile.speculative_tokens + 1))
        return int((self._steps + 1) * rate) - int(self._steps * rate)

    def _budget(self) -> int:
        return self.profile.max_num_batched_tokens - len(self._of("decoding")) * (self.profile.speculative_tokens + 1)

    def _of(self, state: str) -> list[Plain]:
        return sorted((plain for plain in self.all if plain.state == state), key=lambda plain: plain.rank)

    def _chain(self, plain: Plain, blocks: int) -> tuple[int, ...]:
        known = plain.spec.blocks[:blocks]
        complete = len(plain.spec.blocks) >= plain.spec.prompt_tokens // self.profile.block_size
        if known and complete and len(known) < blocks:
            return known + derived_blocks(known[-1], blocks - len(known))
        return known

    def _leave(self, plain: Plain) -> None:
        known = min(plain.computed, plain.spec.prompt_tokens + max(plain.spec.output_tokens - 1, 0))
        chain = self._chain(plain, known // self.profile.block_size)[plain.named :]
        self.cache.retire(chain, plain.blocks - len(plain.held) - len(chain))
        self.cache.release(plain.held)
        plain.held, plain.named, plain.blocks, plain.computed = [], 0, 0, 0

    def _plan(self, at: float, starts_at: float) -> None:
        self._decoding, self._chunks = [], {}
        if not self.all:
            self.ends_at = None
            return
        preempted = self._take_decode_blocks()
        while self._of("prefilling") and self._wanted() > self.cache.available:
            self._preempt_last()
            preempted = True
        self._decoding = self._of("decoding")
        self._chunks = {}
        budget = self._budget()
        for plain in self._of("prefilling"):
            budget -= self._chunk(plain, budget)
        for plain in [] if preempted else self._of("waiting"):
            running = sum(map(len, map(self._of, ("decoding", "prefilling", "leaving"))))
            if not budget or running >= self.profile.max_num_seqs or not self._admit(plain):
                break
            budget -= self._chunk(plain, budget)
        kv_tokens = sum(plain.computed for plain in self._decoding)
        chunks = [(plain.computed, tokens) for plain, tokens in self._chunks.items()]
        if self._is_async and not chunks and not self._decoding and not any(plain.aborted for plain in self.all):
            if starts_at > at:
                self._drains = True
                self.ends_at = self._starts_at = starts_at
            else:
                self._send(at)
                self._plan(at, at)
            return
        ends_at = starts_at + self.profile.step_s(chunks, len(self._decoding), kv_tokens)
        self.ends_at, self._starts_at = (starts_at, ends_at) if self._is_async else (ends_at, ends_at)

    def _take_decode_blocks(self) -> bool:
        """Take the blocks that decoding begins; return whether somebody was preempted for them."""
        preempted = False
        for plain in self._of("decoding"):
            for token in range(plain.computed, plain.computed + self._each()):
                if plain.state == "decoding" and token % self.profile.block_size == 0:
                    preempted |= self._take_one_more(plain)
        return preempted

    def _preempt_last(self) -> Plain:
        running = (*self._of("decoding"), *self._of("prefilling"), *self._of("leaving"))
        victim = max(running, key=lambda other: other.rank)
        self._leave(victim)
        victim.preemptions += 1
        if victim.state == "leaving":
            victim.state = "gone"
        else:
            victim.state, victim.target = "waiting", victim.spec.prompt_tokens + victim.emitted
        return victim

    def _wanted(self) -> int:
        budget, wanted = self._budget(), 0
        for plain in self._of("prefilling"):
            tokens = min(budget, plain.target - plain.computed)
            wanted += self.profile.blocks_for(plain.computed + tokens) - plain.blocks
            budget -= tokens
        return wanted

    def _take_one_more(self, plain: Plain) -> bool:
        preempted = False
        while not self.cache.available:
            victim = self._preempt_last()
            preempted = True
            if victim is plain:
                return True
        self.cache.take(1)
        plain.blocks += 1
        return preempted

    def _chunk(self, plain: Plain, budget: int) -> int:
        tokens = min(budget, plain.target - plain.computed)
        if tokens:
            self._chunks[plain] = tokens
        wanted = self.profile.blocks_for(plain.computed + tokens) - plain.blocks
        self.cache.take(wanted)
        plain.blocks += wanted
        chain = self._chain(plain, (plain.computed + tokens) // self.profile.block_size)
        for block in chain[plain.named :]:
            if self.cache.name(block):
                plain.held.append(block)
        plain.named = max(plain.named, len(chain))
        return tokens

    def _admit(self, plain: Plain) -> bool:
        chain = self._chain(plain, (plain.target - 1) // self.profile.block_size)
        hits, idle = self.cache.match(chain)
        blocks = self.profile.blocks_for(plain.target)
        if blocks - hits + idle > self.cache.available:
            return False
        plain.held = list(chain[:hits])
        self.cache.acquire(plain.held)
        plain.named, plain.blocks, plain.computed = hits, hits, hits * self.profile.block_size
        plain.state = "prefilling"
        if not plain.admitted:
            plain.admitted, plain.cached = True, plain.computed
        return True

    def _finish_step(self, at: float) -> None:
        decoding, chunks, each = self._decoding, self._chunks, self._each()
        self._steps += not self._drains
        self._drains = False
        for plain in decoding:
            plain.computed += each
        for plain in [plain for plain in self.all if plain.aborted]:
            plain.emitted -= sum(tokens for one, tokens, _ in self._outputs if one is plain)
            self._end(plain, at, "abort")
        self._send(at)
        for plain in decoding:
            if not plain.aborted:
                gained = min(each, plain.spec.output_tokens - plain.emitted)
                plain.emitted += gained
                self._sampled(plain, at, gained)
        for plain, tokens in chunks.items():
            if not plain.aborted:
                self._finish_chunk(plain, tokens, at)
        self._plan(at, self._starts_at)

    def _sampled(self, plain: Plain, at: float, tokens: int) -> None:
        is_last = plain.emitted >= plain.spec.output_tokens
        plain.state = "leaving" if is_last else "decoding"
        self._outputs.append((plain, tokens, is_last))
        if not self._is_async:
            self._send(at)

    def _send(self, at: float) -> None:
        outputs, self._outputs = self._outputs, []
        for plain, tokens, is_last in outputs:
            if plain.aborted:
                continue
            if not plain.has_first and tokens:
                plain.has_first = True
                self._tell("first_token", plain, at, "")
            if is_last:
                self._end(plain, at, plain.spec.finish_reason)

    def _finish_chunk(self, plain: Plain, tokens: int, at: float) -> None:
        plain.computed += tokens
        if plain.computed < plain.target:
            return
        plain.emitted += bool(plain.spec.output_tokens)
        self._sampled(plain, at, int(bool(plain.spec.output_tokens)))

    def _end(self, plain: Plain, at: float, reason: str) -> None:
        self._leave(plain)
        self.all.remove(plain)
        self._tell("finished", plain, at, reason)

    def _tell(self, kind: str, plain: Plain, at: float, reason: str) -> None:
        self.events.append(
            Event(at, kind, plain.spec.sequence_id, plain.emitted, plain.cached, plain.preemptions, reason)
        )
