"""A continuous-batching engine as vLLM runs one, without a clock, a socket or an event loop: time is an argument.

A step takes every decoding sequence one token further, or several where drafted ones are accepted, then fills its token
budget with chunks of prefill, first come, first served. Steps between two events differ only in how much KV they read,
so a run of them is one arithmetic series: nothing is done per step, and nothing per sequence and step. `step` plays a
run one step at a time, `advance` whole runs; both read their times off the same series and therefore agree to the last
bit.

A boundary is where the scheduler plans: between two steps, or with asynchronous scheduling when a step begins, for the
one behind it. Then it has not the outputs of the step that begins: they leave, and the blocks of those that end are
free, at the boundary after.

All times are engine seconds from an origin of the caller's choosing and must not run backwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import sqrt

from simulator.batch import Batch, Chunk
from simulator.live import Live
from simulator.lockstep import Lockstep
from simulator.profile import Profile
from simulator.sequence import Fetch, Milestone, MilestoneKind, Sequence, Statistics, StepReport
from simulator.step_book import StepBook

ABORTED = "abort"
"""The finish reason of a sequence that was aborted."""


@dataclass(slots=True)
class _Run:
    """Equal steps that began at `start`: step j (from 1) ends at start + j first + j (j - 1) / 2 growth.

    The boundary of a step is its end; with `ahead` 1 it is its beginning, since the next one is planned then.
    """

    start: float
    first: float
    growth: float
    planned: int
    chunks: list[Chunk]
    ahead: int = 0
    is_empty: bool = False
    """Nothing is computed: the outputs of the step that ends at `start` are still to leave, or KV comes then."""
    is_idle: bool = False
    """The same, but nothing leaves: whatever arrives runs at once."""
    done: int = 0
    members: tuple[str, ...] | None = None

    def end_of(self, step: int) -> float:
        return self.start + step * self.first + (step * (step - 1) // 2) * self.growth

    def boundary_of(self, step: int) -> float:
        return self.end_of(step - self.ahead)

    def steps_until(self, until: float) -> int:
        """How many of its boundaries have come by `until`; never all of them, for the last one ends the run."""
        step, last = self.done, self.planned - 1
        if last > step:
            step = min(max(int(self._guess(until - self.start)) + self.ahead, step), last)
        # The guess is a square root and off by a rounding; what a step's end is, only the series says.
        while step < last and self.boundary_of(step + 1) <= until:
            step += 1
        while step > self.done and self.boundary_of(step) > until:
            step -= 1
        return step

    def _guess(self, span: float) -> float:
        linear = self.first - self.growth / 2
        return 2 * span / (linear + sqrt(linear * linear + 2 * self.growth * max(span, 0.0)))


@dataclass(slots=True)
class _Outputs:
    """What a step sampled: a token for each of `tokens`; some got their first, some end with it."""

    tokens: list[str] = field(default_factory=list)
    firsts: list[Live] = field(default_factory=list)
    ended: list[Live] = field(default_factory=list)

    @property
    def changes_batch(self) -> bool:
        return bool(self.firsts or self.ended)

    def drop(self, live: Live) -> int:
        """Take out what is not wanted any more. Return how many tokens that were."""
        for part in (self.firsts, self.ended):
            if live in part:
                part.remove(live)
        count = self.tokens.count(live.spec.sequence_id)
        if count:
            self.tokens = [name for name in self.tokens if name != live.spec.sequence_id]
        return count


class Engine:
    """One scheduler with one KV cache."""

    def __init__(self, profile: Profile, lockstep: Lockstep | None = None) -> None:
        """`lockstep`: of the engines that step together with it. Raises ValueError where the scheduler plans ahead."""
        if lockstep is not None and profile.async_scheduling:
            raise ValueError("engines that step together plan without asynchronous scheduling")
        self.profile = profile
        self._lockstep = lockstep
        self._batch = Batch(profile)
        self._live: dict[str, Live] = {}
        self._aborted: list[Live] = []
        self._run: _Run | None = None
        self._is_async = profile.async_scheduling
        self._outputs = _Outputs()
        """With asynchronous scheduling: of the step before the last boundary, on their way."""
        self._sent: list[str] = []
        """Whose tokens left at the last boundary."""
        self._arrivals = 0
        self._prompt_tokens = 0
        self._computed_tokens = 0
        self._generation_tokens = 0
        self.step_book: StepBook | None = None
        """Counts steps, where one is given."""

    def __repr__(self) -> str:
        return f"<Engine {self._batch.running} running, {len(self._batch.waiting)} waiting, {self._batch.cache!r}>"

    @property
    def host_load_s(self) -> float:
        """Return the seconds that loads from the host's memory took."""
        return self._batch.host_load_s

    def held_blocks(self, blocks: Iterable[int]) -> int:
        """Return how many leading blocks of a chain are cached."""
        return self._batch.cache.match(blocks)[0]

    # --- What comes in -----------------------------------------------------------------------------------------------

    def submit(self, sequence: Sequence, now: float) -> None:
        """Queue a sequence; an idle engine begins its next step at once, a busy one sees it when its step ends.

        Raises ValueError when it can never fit, its id is in use, or steps up to `now` have not been played.
        """
        self._check(sequence, now)
        if not self.profile.caches_prefixes:
            sequence = replace(sequence, blocks=(), answer_blocks=None)
        order = sequence.priority if self.profile.by_priority else 0
        prompt_blocks = sequence.prompt_tokens // self.profile.block_size
        live = Live(
            sequence, (order, self._arrivals), sequence.prompt_tokens, prompt_blocks, remote=sequence.remote_tokens
        )
        self._arrivals += 1
        self._live[sequence.sequence_id] = live
        self._batch.waiting.push(live)
        self._reconsider(now)

    def delay_step(self, seconds: float, now: float) -> None:
        """Extend the step in flight, if there is one: something else has the engine's core for so long."""
        self._check_played(now)
        if self._run is not None and not self._run.is_idle:
            if self._lockstep is not None:
                self._lockstep.delay(seconds)
            else:
                self._run.start += seconds

    def abort(self, sequence_id: str, now: float) -> bool:
        """End a sequence; blocks and listener are updated at the end of the step. Return False if it is not here."""
        self._check_played(now)
        live = self._live.get(sequence_id)
        if live is None or live.aborted:
            return False
        live.aborted = True
        self._aborted.append(live)
        self._batch.waiting.discard(live)
        self._reconsider(now)
        return True

    def take_fetches(self) -> list[Fetch]:
        """Whose blocks were taken since the last look, and how much of other engines' KV is to come into them."""
        fetches, self._batch.started_fetches = self._batch.started_fetches, []
        return fetches

    def end_fetch(self, sequence_id: str, now: float, *, came: bool) -> bool:
        """The KV that a sequence waits for is here, or never will be. No if it does not wait for any (any more)."""
        self._check_played(now)
        live = self._live.get(sequence_id)
        if live is None or live.aborted or live not in self._batch.fetching:
            return False
        self._batch.end_fetch(live, came=came)
        self._reconsider(now)
        return True

    def let_go(self, sequence_id: str, now: float) -> bool:
        """Free the blocks that a sequence left behind for another engine. No if there are none (any more)."""
        self._check_played(now)
        if not self._batch.let_go(sequence_id):
            return False
        self._reconsider(now)
        return True

    def forget_prefixes(self) -> None:
        """Drop every cached block that no sequence holds."""
        self._batch.cache.forget_idle()

    def _check(self, sequence: Sequence, now: float) -> None:
        self._check_played(now)
        if sequence.sequence_id in self._live:
            raise ValueError(f"sequence {sequence.sequence_id!r} is already here")
        self.check_size(sequence)

    def check_size(self, sequence: Sequence) -> None:
        """Raise ValueError where a sequence can never run here."""
        if sequence.prompt_tokens < 1 or sequence.output_tokens < 0:
            raise ValueError("a sequence has at least one prompt token and no negative output")
        max_tokens = sequence.prompt_tokens + max(sequence.output_tokens - 1, 0) + self.profile.speculative_tokens
        if self.profile.blocks_for(max_tokens) > self._batch.cache.total:
            raise ValueError(f"{max_tokens} tokens never fit into {self.profile.kv_capacity_tokens}")

    def _check_played(self, now: float) -> None:
        at = self.next_step_at()
        if at is not None and at < now:
            raise ValueError(f"a step has ended at {at}, before {now}, and was not played: advance first")

    def _reconsider(self, now: float) -> None:
        """The running set may change: let the step in flight be the last of its run, or begin one."""
        if self._run is None or self._run.is_idle:
            start = now + self.profile.wake_s
            self._begin_run(start, start, [])
        else:
            self._run.planned = self._run.done + 1

    # --- What comes out ----------------------------------------------------------------------------------------------

    def next_step_at(self) -> float | None:
        """When the next boundary is: the end of the step in flight, or its beginning where the scheduler plans ahead.

        None if the engine is idle.
        """
        run = self._run
        return None if run is None else run.boundary_of(run.done + 1)

    def next_event_at(self) -> float | None:
        """No milestone comes before this if nothing is submitted or aborted; None when nothing runs.

        Mostly a milestone's own time, sometimes (a chunk of a long prompt ends) only one at which to ask again.
        """
        run = self._run
        return None if run is None else run.boundary_of(run.planned)

    def step(self, now: float) -> StepReport | None:
        """Play the next boundary if it has come by `now`."""
        run = self._run
        if run is None or run.boundary_of(run.done + 1) > now:
            return None
        if run.members is None:
            run.members = tuple(live.spec.sequence_id for live in self._batch.decoding)
        if run.done + 1 < run.planned:
            run.done += 1
            sampled = run.done - self._is_async
            each = self._batch.gained(sampled) - self._batch.gained(sampled - 1)
            return StepReport(
                run.boundary_of(run.done), run.members * each if sampled else tuple(self._outputs.tokens), ()
            )
        return self._step_async(run) if self._is_async else self._step_ending(run)

    def _step_async(self, run: _Run) -> StepReport:
        milestones: list[Milestone] = []
        self._end_run(run, milestones)
        return StepReport(run.boundary_of(run.planned), tuple(self._sent), tuple(milestones))

    def _step_ending(self, run: _Run) -> StepReport:
        decoding = [live for live in self._batch.decoding if not live.aborted]
        before = self._batch.gained(run.planned - 1)
        each = self._batch.gained(run.planned) - before
        members = tuple(
            live.spec.sequence_id
            for live in decoding
            for _ in range(min(each, live.spec.output_tokens - self._emitted_after(live, before)))
        )
        sampling = tuple(chunk.live for chunk in run.chunks if chunk.live.spec.output_tokens)
        emitted = [live.emitted for live in sampling]
        milestones: list[Milestone] = []
        self._end_run(run, milestones)
        prefilled = (live for live, before in zip(sampling, emitted, strict=True) if live.emitted > before)
        members += tuple(live.spec.sequence_id for live in prefilled)
        return StepReport(run.end_of(run.planned), members, tuple(milestones))

    def _emitted_after(self, live: Live, tokens: int) -> int:
        """How many tokens a decoding sequence has when so many more have been gained."""
        return live.emitted + self._batch.count - live.joined_at + tokens

    def advance(self, until: float) -> list[Milestone]:
        """Play all steps that have ended by `until`; only what anyone wants to know comes back, in order of time."""
        milestones: list[Milestone] = []
        while (run := self._run) is not None:
            if run.boundary_of(run.planned) > until:
                run.done = run.steps_until(until)
                break
            self._end_run(run, milestones)
        return milestones

    def statistics(self) -> Statistics:
        """Gauges and counters as of the last step played."""
        batch, done = self._batch, 0 if self._run is None else self._run.done
        return Statistics(
            running=batch.running,
            waiting=len(batch.waiting) + len(batch.fetching),
            kv_usage=batch.used_blocks(0 if self._run is None else done + 1) / batch.cache.total,
            prefix_query_tokens=batch.query_tokens,
            prefix_hit_tokens=batch.hit_tokens,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens - batch.excess_tokens + batch.gained(done) * len(batch.decoding),
            preemptions=batch.preemptions,
            steps=batch.steps + done,
            computed_prompt_tokens=self._computed_tokens,
            fetching=len(batch.fetching),
            fetched_tokens=batch.fetched_tokens,
            host_hit_tokens=batch.host_hit_tokens,
            store_query_tokens=batch.store_query_tokens,
        )

    def emitted(self, sequence_id: str) -> int:
        """How many tokens have left of a sequence by the last step played; 0 where it is not here."""
        live, run = self._live.get(sequence_id), self._run
        if live is None:
            return 0
        batch = self._batch
        if run is not None and run.done and live in batch.decoding:
            return self._emitted_after(live, batch.gained(run.done - self._is_async))
        emitted = self._emitted_after(live, 0) if live in batch.decoding else live.emitted
        return emitted - self._outputs.tokens.count(sequence_id)

    def audit(self) -> None:
        """Raise AssertionError unless every block is accounted for once; for tests."""
        self._batch.cache.audit()

    # --- From run to run ---------------------------------------------------------------------------------------------

    def _begin_run(self, start: float, at: float, milestones: list[Milestone]) -> None:
        """Plan at the boundary `at` what runs from `start` on."""
        self._run = None
        if self._lockstep is not None and self._live and (boundary := self._lockstep.boundary(at)) > at:
            self._run = _Run(boundary, 0.0, 0.0, 1, [], is_empty=True, is_idle=True)
            return
        while self._live:
            self._batch.end_loads(at)
            plan = self._batch.plan(at)
            decoding = len(self._batch.decoding)
            if plan.chunks or decoding or self._aborted:
                chunks = ((chunk.live.computed, chunk.tokens) for chunk in plan.chunks)
                first = self.profile.step_s(chunks, decoding, self._batch.kv_tokens)
                growth = decoding * self.profile.step_per_kv_token_s * self.profile.tokens_per_step
                steps = 1 if self._outputs.changes_batch or self._lockstep is not None else plan.steps
                self._run = _Run(start, first, growth, steps, plan.chunks, int(self._is_async))
                if self._lockstep is not None:
                    self._lockstep.join(self._run)
                return
            if not (self._outputs.changes_batch or self._outputs.tokens):
                # All sequences here wait for other engines, or for blocks held by others: their end triggers the next
                # attempt.
                if self._batch.loading:
                    self._run = _Run(self._batch.loading[0][0], 0.0, 0.0, 1, [], is_empty=True, is_idle=True)
                return
            if start > at:
                self._run = _Run(start, 0.0, 0.0, 1, [], is_empty=True)
                return
            self._send(at, milestones)

    def _end_run(self, run: _Run, milestones: list[Milestone]) -> None:
        """All planned steps have ended: tell what came of them and begin the next run."""
        if self._is_async:
            self._end_async_run(run, milestones)
            return
        at = run.end_of(run.planned)
        if not run.is_empty:
            self._note_steps(run)
            self._generation_tokens += self._batch.gained(run.planned) * len(self._batch.decoding)
            self._batch.pass_steps(run.planned)
        self._end_aborted(at, milestones)
        # Those that decode stand before those that prefill: so vLLM gives their blocks back, and so they are evicted.
        for live in self._batch.pop_ended():
            self._end(live, at, live.spec.finish_reason, milestones)
        for chunk in run.chunks:
            if not chunk.live.aborted:
                self._end_chunk(chunk, at, milestones)
        self._begin_run(at, at, milestones)

    def _end_async_run(self, run: _Run, milestones: list[Milestone]) -> None:
        """The same, but what comes of the last step leaves at the next boundary."""
        at, batch = run.boundary_of(run.planned), self._batch
        if run.planned > 1:
            each = batch.gained(run.planned - 1) - batch.gained(run.planned - 2)
            self._outputs.tokens = [live.spec.sequence_id for live in batch.decoding] * each
        self._sent = []
        if not run.is_empty:
            self._note_steps(run)
            self._generation_tokens += batch.gained(run.planned) * len(batch.decoding)
            batch.pass_steps(run.planned)
        self._end_aborted(at, milestones)
        self._send(at, milestones)
        if not run.is_empty:
            self._outputs.tokens = [
                live.spec.sequence_id for live in batch.decoding for _ in range(batch.sampled_last(live))
            ]
            self._outputs.ended = list(batch.pop_ended())
            for chunk in run.chunks:
                if not chunk.live.aborted:
                    self._end_chunk(chunk, at, milestones)
        self._begin_run(run.end_of(run.planned), at, milestones)

    def _note_steps(self, run: _Run) -> None:
        """Count the steps of a run that ends, before they are counted as passed."""
        book, profile = self.step_book, self.profile
        if book is None:
            return
        decoding, steps = len(self._batch.decoding), run.planned
        batched = decoding * profile.decode_tokens + sum(chunk.tokens for chunk in run.chunks)
        book.observe(steps, run.first + (steps - 1) / 2 * run.growth, decoding, batched)
        if profile.speculative_tokens and decoding:
            book.draft(steps * decoding, profile.speculative_tokens, self._batch.gained(steps) * decoding)

    def accept_drafts(self, rate: float, now: float) -> None:
        """From the next step on accept this share of drafted tokens."""
        self._check_played(now)
        self._batch.accept_drafts(rate)
        if self._run is not None and not self._run.is_idle:
            self._run.planned = self._run.done + 1

    def _send(self, at: float, milestones: list[Milestone]) -> None:
        """Let outputs leave, and free the blocks of those that end."""
        outputs, self._outputs = self._outputs, _Outputs()
        self._sent += outputs.tokens
        milestones += [live.milestone(MilestoneKind.FIRST_TOKEN, at) for live in outputs.firsts]
        for live in outputs.ended:
            self._batch.retire(live)
            self._end(live, at, live.spec.finish_reason, milestones)

    def _end_aborted(self, at: float, milestones: list[Milestone]) -> None:
        """What the step in flight sampled for them is thrown away."""
        for live in self._aborted:
            lost = self._batch.sampled_last(live) if live in self._batch.decoding else 0
            lost += self._outputs.drop(live)
            self._batch.remove(live)
            live.emitted -= lost
            self._generation_tokens -= lost
            self._end(live, at, ABORTED, milestones)
        self._aborted.clear()

    def _end_chunk(self, chunk: Chunk, at: float, milestones: list[Milestone]) -> None:
        live = chunk.live
        live.computed += chunk.tokens
        self._computed_tokens += chunk.tokens
        if live.computed < live.target:
            return
        first = live.emitted == 0
        if first:
            self._prompt_tokens += live.spec.prompt_tokens
        sampled = live.spec.output_tokens > 0
        live.emitted += sampled
        self._generation_tokens += sampled
        if self._is_async:
            self._outputs.tokens += [live.spec.sequence_id] * sampled
            self._outputs.firsts += [live] * (first and sampled)
        elif first and sampled:
            milestones.append(live.milestone(MilestoneKind.FIRST_TOKEN, at))
        if live.emitted < live.spec.output_tokens:
            self._batch.start_decoding(live)
            return
        self._batch.finish(live)
        if self._is_async:
            self._outputs.ended.append(live)
        else:
            self._end(live, at, live.spec.finish_reason, milestones)

    def _end(self, live: Live, at: float, reason: str, milestones: list[Milestone]) -> None:
        del self._live[live.spec.sequence_id]
        milestones.append(live.milestone(MilestoneKind.FINISHED, at, reason))
