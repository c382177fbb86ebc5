"""Which sequences run, wait and hold which blocks: vLLM's scheduler between two steps. Independent of step times.

All decoding sequences gain as many tokens in a step, one without speculation, so only the token count moves: KV tokens,
blocks begun and ends to come are sums and differences over it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice

from simulator.host_tier import HostTier
from simulator.live import Live, WaitingQueue
from simulator.paged_cache import PagedCache
from simulator.profile import Profile
from simulator.sequence import Fetch


@dataclass(frozen=True, slots=True)
class Chunk:
    """`tokens` of `live`'s prompt, to be computed in one step."""

    live: Live
    tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next step does besides decoding, and how many steps from then on are alike."""

    chunks: list[Chunk]
    steps: int


class Batch:
    """The running and waiting sequences of one engine."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.cache = PagedCache(profile.kv_blocks)
        self.host = HostTier(profile.host_kv_tokens // profile.block_size)
        self.loading: list[tuple[float, Live]] = []
        """When the KV of each is there from the host's memory, in this order; all are among those that fetch."""
        self._load_ends_s = 0.0
        self.host_hit_tokens = 0
        self.store_query_tokens = 0
        self.host_load_s = 0.0
        """Seconds that loads from the host's memory took, summed."""
        self.waiting = WaitingQueue()
        self.prefilling: dict[Live, None] = {}
        self.decoding: dict[Live, None] = {}
        self.fetching: dict[Live, None] = {}
        """They have their blocks, and wait for another engine's KV."""
        self.leaving: dict[Live, None] = {}
        """With asynchronous scheduling: their last token has not left, and their blocks are still taken."""
        self._leaves_late = profile.async_scheduling
        self.held: dict[str, Live] = {}
        """They have ended; their blocks wait to be fetched."""
        self.started_fetches: list[Fetch] = []
        self.fetched_tokens = 0
        self.steps = 0
        self.excess_tokens = 0
        """What speculation made beyond the last tokens of sequences."""
        self._paces = [(0, 0, profile.tokens_per_step)]
        """(From which step on, tokens until then, tokens of a step): the pace before the last change, and since."""
        self._next_pace: float | None = None
        self.kv_tokens = 0
        """KV tokens of all that decode, at the token count."""
        self.preemptions = 0
        self.query_tokens = 0
        self.hit_tokens = 0
        self._ends: list[tuple[int, tuple[int, int], int, Live]] = []
        """(token count at its last token, rank, token count at which it joined): one that left since counts no more."""
        self._beginners = [0] * profile.block_size
        """How many that decode begin a block with a token whose number leaves this remainder."""

    @property
    def running(self) -> int:
        """How many sequences hold a place in the batch."""
        return len(self.prefilling) + len(self.decoding) + len(self.leaving)

    def gained(self, steps: int) -> int:
        """Return how many tokens each decoding sequence gains in the next steps; below 0 in the last ones."""
        return self._tokens(self.steps + steps) - self._tokens(self.steps)

    @property
    def count(self) -> int:
        """Tokens that a sequence would have that decoded from the beginning."""
        return self._tokens(self.steps)

    def _tokens(self, steps: int) -> int:
        begin, tokens, pace = self._paces[-1] if steps >= self._paces[-1][0] else self._paces[0]
        return tokens + (steps - begin if pace == 1.0 else int((steps - begin) * pace))

    def accept_drafts(self, rate: float) -> None:
        """Accept this share of drafted tokens from the next plan on."""
        self._next_pace = sum(rate**place for place in range(self.profile.decode_tokens))

    def sampled_last(self, live: Live) -> int:
        """Return how many tokens a decoding sequence gained in the last step."""
        last = -self.gained(-1)
        left = live.spec.output_tokens - live.emitted - (self.count - last - live.joined_at)
        return min(last, left)

    # --- Deciding the next step --------------------------------------------------------------------------------------

    def plan(self, at: float) -> Plan:
        """Decide the step that begins at `at`."""
        if self._next_pace is not None:
            self._paces = [self._paces[-1], (self.steps, self.count, self._next_pace)]
            self._next_pace = None
        preempted = self._make_room()
        chunks = self._plan_chunks(at, may_admit=not preempted)
        return Plan(chunks, 1 if chunks or preempted or not self.decoding else self._steps_alike())

    def _make_room(self) -> bool:
        """Take the blocks that decoding begins in the next step, from the last in order of service if need be, and see
        that those who prefill find theirs.
        """
        preempted = False
        while self._blocks_started(0, self.gained(1)) + self._chunk_blocks() > self.cache.available:
            self._preempt(max((*self.decoding, *self.prefilling, *self.leaving), key=lambda live: live.rank))
            preempted = True
        self.cache.take(self._blocks_started(0, self.gained(1)))
        return preempted

    def _chunk_budget(self) -> int:
        """Tokens of a step that decoding leaves."""
        return self.profile.max_num_batched_tokens - len(self.decoding) * self.profile.decode_tokens

    def _chunk_blocks(self) -> int:
        """Blocks that the next chunks of those who have begun to prefill want."""
        budget, blocks = self._chunk_budget(), 0
        for live in self.prefilling:
            tokens = min(budget, live.target - live.computed)
            blocks += self._wanted_blocks(live, tokens)
            budget -= tokens
        return blocks

    def _wanted_blocks(self, live: Live, tokens: int) -> int:
        return max(self.profile.blocks_for(live.computed + tokens) - live.blocks, 0)

    def _preempt(self, live: Live) -> None:
        has_all = live in self.leaving
        self.remove(live)
        live.preemptions += 1
        self.preemptions += 1
        if not has_all:
            live.target = live.spec.prompt_tokens + live.emitted
            self.waiting.push(live)

    def _plan_chunks(self, at: float, *, may_admit: bool) -> list[Chunk]:
        """Plan the chunks: first those of started prefills, then those of waiting sequences, until one does not fit."""
        chunks: list[Chunk] = []
        budget = self._chunk_budget()
        for live in self.prefilling:
            if budget:
                budget -= self._plan_chunk(live, budget, chunks)
        while may_admit and budget and self.running + len(self.fetching) < self.profile.max_num_seqs:
            head = self.waiting.head()
            if head is None or not self._admit(head, at):
                break
            if head in self.prefilling:
                budget -= self._plan_chunk(head, budget, chunks)
        return chunks

    def _plan_chunk(self, live: Live, budget: int, chunks: list[Chunk]) -> int:
        tokens = min(budget, live.target - live.computed)
        wanted = self._wanted_blocks(live, tokens)
        self.cache.take(wanted)
        live.blocks += wanted
        chunks.append(Chunk(live, tokens))
        self._name_blocks(live, (live.computed + tokens) // self.profile.block_size)
        return tokens

    def _name_blocks(self, live: Live, full: int) -> None:
        """Cache the blocks that a chunk fills when it is planned, as vLLM does: a twin in this step hits."""
        chain = live.chain(full)
        for block in islice(chain, live.named, None):
            if self.cache.name(block):
                live.held.append(block)
            self.host.put(block)
        live.named = max(live.named, len(chain))

    def _admit(self, live: Live, at: float) -> bool:
        """Let it run if all the tokens it must compute fit now. Its blocks are taken chunk by chunk, so that who comes
        next may be promised the same ones: one of them is preempted then, as in vLLM.
        """
        block_size, cache = self.profile.block_size, self.cache
        reusable = live.chain((live.target - 1) // block_size)
        hits, idle_hits = cache.match(reusable)
        blocks = self.profile.blocks_for(live.target)
        if blocks - hits + idle_hits > cache.available:
            return False
        self.waiting.pop()
        live.held = list(islice(reusable, hits))
        cache.acquire(live.held)
        live.named, live.blocks, live.computed = hits, hits, hits * block_size
        if self.host.total:
            self._look_into_host(live, reusable[hits:], at)
        if live.host > live.computed:
            cache.take(blocks - hits)
            live.blocks = blocks
            self.fetching[live] = None
        elif live.remote > live.computed:
            # Whoever waits for another engine's KV has room for all of it.
            cache.take(blocks - hits)
            live.blocks = blocks
            self.fetching[live] = None
            self.started_fetches.append(Fetch(live.spec.sequence_id, live.remote - live.computed))
        else:
            self.prefilling[live] = None
        if live.admitted_at is None:
            self._count_lookup(live, at)
        return True

    def _look_into_host(self, live: Live, rest: tuple[int, ...], at: float) -> None:
        """Begin to load what follows on the cached blocks, where no other engine has more."""
        live.host = 0
        if live.admitted_at is None:
            self.store_query_tokens += len(rest) * self.profile.block_size
        tokens = self.host.match(rest) * self.profile.block_size
        if not tokens or live.computed + tokens < live.remote:
            return
        live.host, live.remote = live.computed + tokens, 0
        seconds = tokens / self.profile.host_load_tokens_per_s
        self.host_load_s += seconds
        self._load_ends_s = max(self._load_ends_s, at) + seconds
        self.loading.append((self._load_ends_s, live))

    def end_loads(self, at: float) -> None:
        """Let those run whose KV has come from the host's memory by `at`."""
        while self.loading and self.loading[0][0] <= at:
            _, live = self.loading.pop(0)
            if live not in self.fetching:
                continue
            del self.fetching[live]
            self.host_hit_tokens += live.host - live.computed
            if not live.preemptions:
                live.cached_tokens = live.host
            live.computed = live.host
            self._name_blocks(live, live.computed // self.profile.block_size)
            self.prefilling[live] = None

    def _count_lookup(self, live: Live, at: float) -> None:
        """Into the books once; what a sequence finds again after a preemption is its own."""
        live.admitted_at, live.cached_tokens = at, live.computed
        self.query_tokens += live.target
        self.hit_tokens += live.computed

    def _steps_alike(self) -> int:
        """Return the steps until a decoding sequence ends or blocks run out. Nothing is admitted until then."""
        self._drop_stale_ends()
        tokens = self._ends[0][0] - self.count
        steps = max(int(tokens / self._paces[-1][2]), 1)
        while self.gained(steps) < tokens:
            steps += 1
        room = self.cache.available
        if room >= len(self.decoding) * ((self.gained(steps) - 1) // self.profile.block_size + 1):
            return steps
        for step in range(1, steps):
            room -= self._blocks_started(self.gained(step), self.gained(step + 1))
            if room < 0:
                return step
        return steps

    # --- Letting steps pass ------------------------------------------------------------------------------------------

    def pass_steps(self, count: int) -> None:
        """`count` planned steps have ended: all that decode have their tokens.

        The blocks of the first one were taken when it was planned.
        """
        tokens = self.gained(count)
        self.cache.take(self._blocks_started(self.gained(1), tokens))
        self.steps += count
        self.kv_tokens += tokens * len(self.decoding)

    def used_blocks(self, steps: int) -> int:
        """Blocks held during the last of the first `steps` steps from the count on."""
        return self.cache.used + self._blocks_started(self.gained(1), self.gained(steps))

    def _blocks_started(self, first: int, end: int) -> int:
        """Blocks begun by decoding with the tokens [first, end) from the count on."""
        begin, size = (self.count + first) % self.profile.block_size, self.profile.block_size
        rounds, rest = divmod(max(end - first, 0), size)
        started = rounds * len(self.decoding) + sum(self._beginners[begin : begin + rest])
        return started + sum(self._beginners[: max(begin + rest - size, 0)])

    # --- Sequences changing state ------------------------------------------------------------------------------------

    def start_decoding(self, live: Live) -> None:
        """Its prompt is computed and its next token sampled: it joins the next step."""
        del self.prefilling[live]
        self.decoding[live] = None
        count = self.count
        live.joined_at = count
        self.kv_tokens += live.computed
        self._beginners[(count - live.computed) % self.profile.block_size] += 1
        end = count + live.spec.output_tokens - live.emitted
        heappush(self._ends, (end, live.rank, count, live))

    def end_fetch(self, live: Live, *, came: bool) -> None:
        """What another engine has computed is here, all but the last token, which is always computed; or it never will
        be, and all is computed.
        """
        del self.fetching[live]
        if came:
            self.fetched_tokens += live.remote - live.computed
            live.cached_tokens = live.remote
            live.computed = min(live.remote, live.target - 1)
            self._name_blocks(live, live.computed // self.profile.block_size)
        live.remote = 0
        self.prefilling[live] = None

    def finish(self, live: Live) -> None:
        """Finish a sequence that has its last token: release its blocks, at once or when that token has left."""
        if self._leaves_late:
            self._take_out(live)
            self.leaving[live] = None
        else:
            self._retire(live)

    def retire(self, live: Live) -> None:
        """Its last token has left. Preempted since, it has no blocks any more."""
        if live in self.leaving:
            self._retire(live)

    def _retire(self, live: Live) -> None:
        """Release the blocks, or keep them for the pod that will fetch them."""
        if live.spec.is_held:
            self._take_out(live)
            self.held[live.spec.sequence_id] = live
        else:
            self.remove(live)

    def let_go(self, sequence_id: str) -> bool:
        """Give back what was held for another engine. No if nothing is."""
        live = self.held.pop(sequence_id, None)
        if live is not None:
            self._leave(live)
        return live is not None

    def remove(self, live: Live) -> None:
        """Take it out of the batch or the queue, its blocks given back."""
        self._take_out(live)
        self._leave(live)

    def _leave(self, live: Live) -> None:
        if self.host.total:
            for block in live.chain(live.kept // self.profile.block_size)[live.named :]:
                self.host.put(block)
        live.leave(self.cache, self.profile.block_size)

    def _take_out(self, live: Live) -> None:
        if live in self.decoding:
            del self.decoding[live]
            count = self.count
            self.excess_tokens += live.stop_decoding(count)
            self.kv_tokens -= live.computed
            self._beginners[(count - live.computed) % self.profile.block_size] -= 1
        elif live in self.prefilling:
            del self.prefilling[live]
        elif live in self.fetching:
            del self.fetching[live]
            self.loading = [one for one in self.loading if one[1] is not live]
        elif live in self.leaving:
            del self.leaving[live]
        else:
            self.waiting.discard(live)

    def pop_ended(self) -> Iterator[Live]:
        """Those whose last token came with the token count reached; each is taken out."""
        while self._ends and self._ends[0][0] <= self.count:
            _, _, joined, live = heappop(self._ends)
            if live.joined_at == joined:
                self.finish(live)
                yield live

    def _drop_stale_ends(self) -> None:
        while self._ends[0][3].joined_at != self._ends[0][2]:
            heappop(self._ends)
