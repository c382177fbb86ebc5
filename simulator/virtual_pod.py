"""A simulated engine in a virtual loop, and its transfers of KV from other engines. No HTTP, no real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from simulator.api_server import ApiServer
from simulator.engine import Engine
from simulator.link import Link
from simulator.lockstep import Lockstep
from simulator.profile import Profile
from simulator.sequence import Fetch, Milestone, MilestoneKind, Sequence, Statistics
from simulator.transfer.side_channel import Counts

Listener = Callable[[Milestone], None]

LOST = "lost"
"""The finish reason of a sequence whose engine died."""

ROUNDING_S = 1e-9

LEASE_S = 30.0
"""How long an engine keeps KV that is not fetched: NIXL's default."""


class Wire:
    """One engine's way to others: transfers go one after the other, in and out apart."""

    __slots__ = ("_loop", "_out_until_s", "counts", "in_until_s", "link", "moved_tokens", "transfers")

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self.link = link
        self.in_until_s = 0.0
        self.transfers = 0
        self.moved_tokens = 0
        self.counts = Counts()
        """Of what came in, as a metrics page has it."""
        self._out_until_s = 0.0
        self._loop = loop

    def send(self, to: Wire, tokens: int, then: Callable[[], None]) -> asyncio.TimerHandle:
        """Transfer the KV of `tokens` tokens; `then` is called at its end."""
        begin_s = max(self._loop.time(), self._out_until_s, to.in_until_s)
        link = self.link if self.link.wire_s(tokens) >= to.link.wire_s(tokens) else to.link
        self._out_until_s = to.in_until_s = begin_s + link.wire_s(tokens)
        self.transfers += 1
        self.moved_tokens += tokens
        to.count(tokens, link, begin_s)
        return self._loop.call_at(self._out_until_s + self.link.fixed_s, then)

    def count(self, tokens: int, link: Link, begin_s: float) -> None:
        """Count a transfer that comes in over a link, and that it waits until it begins."""
        counts = self.counts
        counts.transfers += 1
        counts.transfer_s += link.wire_s(tokens) + link.fixed_s
        counts.post_s += link.fixed_s
        counts.bytes_moved += tokens * link.bytes_per_token
        counts.descriptors += link.descriptors(tokens)
        if begin_s > self._loop.time():
            counts.queued += 1
            self._loop.call_at(begin_s, self._begin)

    def _begin(self) -> None:
        self.counts.queued -= 1


class VirtualPod:
    """One engine that plays its steps as the loop's clock passes them: one timer, set to its next event."""

    def __init__(
        self,
        profile: Profile,
        loop: asyncio.AbstractEventLoop,
        link: Link | None = None,
        lockstep: Lockstep | None = None,
    ) -> None:
        self.engine = Engine(profile, lockstep)
        self._lockstep = lockstep
        if lockstep is not None:
            lockstep.listeners.append(self._arm)
        self._api_server = ApiServer(profile)
        self._arriving: dict[str, asyncio.TimerHandle] = {}
        """Requests that the API server has not handed to the engine yet."""
        self.wire = Wire(link or Link(), loop)
        self.expired = 0
        """How often KV was kept and not fetched."""
        self._leases: dict[str, asyncio.TimerHandle] = {}
        self._sources: dict[str, tuple[VirtualPod, str]] = {}
        self._transfers: dict[str, asyncio.TimerHandle] = {}
        self._loop = loop
        self._listeners: dict[str, Listener] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.is_lost = False
        self._paused_at_s: float | None = None
        self._behind_s = 0.0
        """Seconds for which the engine was paused: its own clock runs behind by them."""
        self.loses_fetches = 0
        """A fault: of so many fetches one fails, and its prompt is computed here; 0: none."""
        self._fetches = 0
        self._failing: set[str] = set()
        self._held: set[str] = set()
        """Sequences whose KV is to be kept for another engine when they end."""

    def submit(self, sequence: Sequence, listener: Listener, source: tuple[VirtualPod, str] | None = None) -> float:
        """Queue a sequence; `listener` is called with its first token and its end. Return the engine's time at which
        the API server hands it over.

        `source` is the engine that holds the KV of its remote tokens, and the sequence there that computed it.

        Raises ValueError where it never fits, ConnectionError while the engine is lost.
        """
        if self.is_lost:
            raise ConnectionError("the engine is lost")
        self._play()
        if source is not None:
            self._sources[sequence.sequence_id] = source
        handed_over_s = self._arrive(sequence)
        self._listeners[sequence.sequence_id] = listener
        if sequence.is_held:
            self._held.add(sequence.sequence_id)
        self._go_on()
        return handed_over_s

    def engine_time(self) -> float:
        """Return the engine's time, seconds: the loop's without those for which it was paused."""
        now = self._loop.time() if self._paused_at_s is None else self._paused_at_s
        # What a subtraction rounds away must not leave the engine just before an event whose timer has fired.
        return now - self._behind_s + ROUNDING_S if self._behind_s else now

    def pause(self) -> None:
        """Stop stepping; requests are still accepted and wait. Raises ValueError where others step with it."""
        if self._lockstep is not None:
            raise ValueError("engines that step together cannot be paused one by one")
        self._play()
        self._paused_at_s = self._loop.time()
        self._arm()

    def unpause(self) -> None:
        """Step again."""
        if self._paused_at_s is not None:
            self._behind_s += self._loop.time() - self._paused_at_s
            self._paused_at_s = None
            self._go_on()

    def accept_drafts(self, rate: float) -> None:
        """From the next step on accept this share of drafted tokens."""
        self._play()
        self.engine.accept_drafts(rate, self.engine_time())
        self._go_on()

    def _arrive(self, sequence: Sequence) -> float:
        """Hand a sequence to the engine, after the API server's time where that has any."""
        now, tokens = self.engine_time(), sequence.prompt_tokens
        if self._api_server.is_instant:
            self.engine.submit(sequence, now)
            return now
        self.engine.check_size(sequence)
        self.engine.delay_step(self.engine.profile.step_delay_s(tokens), now)
        due = self._api_server.arrive(tokens, now)
        self._arriving[sequence.sequence_id] = self._loop.call_at(due + self._behind_s, self._enter, sequence)
        return due

    def _enter(self, sequence: Sequence) -> None:
        del self._arriving[sequence.sequence_id]
        self._play()
        self.engine.submit(sequence, self.engine_time())
        self._go_on()

    def held_blocks(self, blocks: tuple[int, ...]) -> int:
        """Return how many leading blocks of a chain the engine has cached now."""
        self._play()
        return self.engine.held_blocks(blocks)

    def abort(self, sequence_id: str) -> None:
        """Abort a sequence without a listener."""
        if self._listeners.pop(sequence_id, None) is None:
            return
        self._end_transfer(sequence_id)
        self._held.discard(sequence_id)
        if (arriving := self._arriving.pop(sequence_id, None)) is not None:
            arriving.cancel()
            return
        self._play()
        self.engine.abort(sequence_id, self.engine_time())
        self._go_on()

    def let_go(self, sequence_id: str) -> None:
        """Release what this sequence left behind: it was fetched, or will not be."""
        if (lease := self._leases.pop(sequence_id, None)) is None:
            return
        lease.cancel()
        self._play()
        self.engine.let_go(sequence_id, self.engine_time())
        self._go_on()

    def prolong(self, sequence_id: str) -> None:
        """Keep the lease until it is released: the fetching pod sends heartbeats."""
        if (lease := self._leases.get(sequence_id)) is not None:
            lease.cancel()

    def lose(self) -> None:
        """The engine dies, and all that is on it."""
        self.is_lost = True
        self._play()
        for sequence_id, listener in list(self._listeners.items()):
            emitted = self.engine.emitted(sequence_id)
            self.abort(sequence_id)
            listener(Milestone(MilestoneKind.FINISHED, sequence_id, self._loop.time(), emitted, 0, None, 0, LOST))

    def revive(self) -> None:
        """It is there again, with nothing in its cache."""
        for sequence_id in list(self._leases):
            self.let_go(sequence_id)
        self.is_lost = False
        self.engine.forget_prefixes()

    def statistics(self) -> Statistics:
        """What a scrape would show now."""
        self._play()
        return self.engine.statistics()

    def _play(self) -> None:
        for milestone in self.engine.advance(self.engine_time()):
            ended = milestone.kind is MilestoneKind.FINISHED
            listeners = self._listeners
            listener = listeners.pop(milestone.sequence_id, None) if ended else listeners.get(milestone.sequence_id)
            if ended:
                self._end_transfer(milestone.sequence_id)
            if ended and milestone.sequence_id in self._held:
                self._hold(milestone.sequence_id)
            if listener:
                listener(milestone)

    def _hold(self, sequence_id: str) -> None:
        self._held.discard(sequence_id)
        self._leases[sequence_id] = self._loop.call_later(LEASE_S, self._expire, sequence_id)

    def _expire(self, sequence_id: str) -> None:
        self.expired += 1
        self.wire.counts.expired += 1
        self.let_go(sequence_id)

    def _ring(self) -> None:
        self._timer = None
        self._play()
        self._go_on()

    def _go_on(self) -> None:
        """After anything that may have given a sequence its blocks."""
        for wanted in self.engine.take_fetches():
            self._fetch(wanted)
        self._arm()

    def _fetch(self, wanted: Fetch) -> None:
        source, held_as = self._sources[wanted.sequence_id]
        self._fetches += 1
        if source.is_lost or (self.loses_fetches and self._fetches % self.loses_fetches == 0):
            self.wire.counts.failed += 1
            self._failing.add(wanted.sequence_id)
            self._loop.call_soon(self._end_fetch, wanted.sequence_id)
            return
        source.prolong(held_as)
        self._transfers[wanted.sequence_id] = source.wire.send(
            self.wire, wanted.tokens, lambda: self._end_fetch(wanted.sequence_id)
        )

    def _end_fetch(self, sequence_id: str) -> None:
        self._transfers.pop(sequence_id, None)
        if (reported := self._sources.pop(sequence_id, None)) is None:
            return
        source, held_as = reported
        self._play()
        came = not source.is_lost and sequence_id not in self._failing
        self._failing.discard(sequence_id)
        self.engine.end_fetch(sequence_id, self.engine_time(), came=came)
        source.let_go(held_as)
        self._go_on()

    def _end_transfer(self, sequence_id: str) -> None:
        """End a transfer without a consumer and notify its source, as NIXL does."""
        self._failing.discard(sequence_id)
        if (timer := self._transfers.pop(sequence_id, None)) is not None:
            timer.cancel()
        if (source := self._sources.pop(sequence_id, None)) is not None:
            source[0].let_go(source[1])

    def _arm(self) -> None:
        due = None if self._paused_at_s is not None else self.engine.next_event_at()
        if due is not None:
            due += self._behind_s
        if self._timer is not None:
            if self._timer.when() == due:
                return
            self._timer.cancel()
        self._timer = None if due is None else self._loop.call_at(due, self._ring)
