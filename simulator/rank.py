"""One engine in real time: an event-loop timer plays its steps, and consumers that wait for tokens are woken.

Knows the event loop and the engine; independent of HTTP and of the tokens' content.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Protocol

from simulator.api_server import ApiServer
from simulator.books import Books
from simulator.engine import ABORTED, Engine
from simulator.lockstep import Lockstep
from simulator.profile import Profile
from simulator.sequence import Fetch, Milestone, MilestoneKind, Sequence


class Bell:
    """Wakes one waiter; a ring without a waiter is kept, several count as one."""

    __slots__ = ("_loop", "_waiter", "_was_set_once")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._was_set_once = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake the waiter, now or when it comes."""
        self._was_set_once = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until it has rung since the last wait."""
        if not self._was_set_once:
            self._waiter = self._loop.create_future()
            await self._waiter
            self._waiter = None
        self._was_set_once = False


class Errands(Protocol):
    """Transfers KV between engines."""

    def fetch(self, rank: Rank, wanted: Fetch) -> None:
        """A sequence has its blocks, and wants another engine's KV in them."""
        ...

    def ended(self, rank: Rank, end: Milestone) -> None:
        """A sequence has ended by itself."""
        ...

    def gave_up(self, sequence_id: str) -> None:
        """A sequence was aborted."""
        ...


class Progress:
    """How far one sequence has come, as its consumer sees it."""

    __slots__ = ("bell", "end", "first", "has_failed", "produced", "sequence", "submitted_at")

    def __init__(self, sequence: Sequence, bell: Bell, submitted_at: float) -> None:
        self.sequence = sequence
        self.bell = bell
        self.submitted_at = submitted_at
        self.produced = 0
        self.first: Milestone | None = None
        self.end: Milestone | None = None
        self.has_failed = False
        """The engine died under it."""

    @property
    def is_over(self) -> bool:
        """Nothing more will come."""
        return self.end is not None or self.has_failed


class Pace:
    """Engine seconds per second of the event loop; it can be changed and paused."""

    __slots__ = ("_engine_s", "_loop", "_since", "speed")

    def __init__(self, speed: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._engine_s = 0.0
        self.speed = speed

    def now(self) -> float:
        """Engine seconds now."""
        return self._engine_s + (self._loop.time() - self._since) * self.speed

    def loop_time(self, engine_s: float) -> float:
        """When the loop's clock will show this engine second; the speed must not be 0."""
        return self._since + (engine_s - self._engine_s) / self.speed

    def change(self, speed: float) -> None:
        """Set the pace: `speed` engine seconds a second; 0 pauses."""
        self._engine_s, self._since = self.now(), self._loop.time()
        self.speed = speed


class RankGroup:
    """Ranks that step together, with one clock."""

    def __init__(self, speed: float) -> None:
        self.pace = Pace(speed)
        self.lockstep = Lockstep()
        self.ranks: list[Rank] = []

    def catch_up(self, now: float) -> None:
        """Play the steps of all ranks that have ended by `now`, in the order of their ends."""
        while (at := min(map(_due, self.ranks))) <= now:
            for rank in [rank for rank in self.ranks if _due(rank) == at]:
                rank.play_step(at)
            for rank in self.ranks:
                rank.set_timer()


def _due(rank: Rank) -> float:
    due = rank.engine.next_step_at()
    return inf if due is None else due


class Rank:
    """One data-parallel rank of a pod."""

    def __init__(self, profile: Profile, group: RankGroup | None = None) -> None:
        """`group`: of the ranks that step together with it. Raises ValueError as `Engine` does."""
        self.engine = Engine(profile, group.lockstep if group else None)
        self._group = group
        if group is not None:
            group.ranks.append(self)
            group.lockstep.listeners.append(self.set_timer)
        self.books = Books(profile.time_scale)
        self.engine.step_book = self.books.steps
        self._speed = profile.time_scale
        self._pace = group.pace if group else Pace(self._speed)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._live: dict[str, Progress] = {}
        self._api_server = ApiServer(profile)
        self._arriving: dict[str, asyncio.TimerHandle] = {}
        """Requests that the API server has not handed to the engine yet."""
        self._is_dead = False
        self.errands: Errands | None = None
        """Receives what concerns other engines; None without others."""
        self.idle = asyncio.Event()
        """Set while the engine has nothing to do."""
        self.idle.set()

    @property
    def load(self) -> int:
        """What vLLM's own balancer compares ranks by."""
        books = self.engine.statistics()
        return 4 * books.waiting + books.running

    @property
    def in_flight(self) -> int:
        """Sequences submitted and not over."""
        return len(self._live)

    def submit(self, sequence: Sequence, bell: Bell) -> Progress:
        """Give the engine a sequence; the bell rings whenever it has come further."""
        now = self._catch_up()
        progress = Progress(sequence, bell, now)
        if self._is_dead:
            progress.has_failed = True
            bell.ring()
            return progress
        self._arrive(sequence, now)
        self._live[sequence.sequence_id] = progress
        self._notify_fetches()
        self.set_timer()
        return progress

    def _arrive(self, sequence: Sequence, now: float) -> None:
        """Hand a sequence to the engine, after the API server's time where that has any."""
        if self._api_server.is_instant or self._pace.speed <= 0:
            self.engine.submit(sequence, now)
            return
        self.engine.check_size(sequence)
        self.engine.delay_step(self.engine.profile.step_delay_s(sequence.prompt_tokens), now)
        due = self._pace.loop_time(self._api_server.arrive(sequence.prompt_tokens, now))
        self._arriving[sequence.sequence_id] = self._loop.call_at(due, self._enter, sequence)

    def _enter(self, sequence: Sequence) -> None:
        del self._arriving[sequence.sequence_id]
        if self._is_dead:
            return
        self.engine.submit(sequence, self._catch_up())
        self._notify_fetches()
        self.set_timer()

    def _leave_before_entry(self, sequence_id: str) -> bool:
        """Drop a sequence that has not reached the engine. False where it has."""
        arriving = self._arriving.pop(sequence_id, None)
        if arriving is None:
            return False
        arriving.cancel()
        self.set_timer()
        return True

    def abort(self, sequence_id: str) -> None:
        """Take a sequence out by the next step; nothing when it has ended already."""
        if self._live.pop(sequence_id, None) is not None and not self._leave_before_entry(sequence_id):
            self.engine.abort(sequence_id, self._catch_up())
            self.set_timer()
            if self.errands is not None:
                self.errands.gave_up(sequence_id)

    def end_fetch(self, sequence_id: str, *, came: bool) -> None:
        """Another engine's KV is here, or will never be."""
        self.engine.end_fetch(sequence_id, self._catch_up(), came=came)
        self._notify_fetches()
        self.set_timer()

    def let_go(self, sequence_id: str) -> None:
        """Release the blocks of a sequence whose KV will not be fetched."""
        self.engine.let_go(sequence_id, self._catch_up())
        self._notify_fetches()
        self.set_timer()

    def fail(self, sequence_id: str) -> None:
        """This one sequence cannot go on."""
        progress = self._live.pop(sequence_id, None)
        if progress is not None:
            if not self._leave_before_entry(sequence_id):
                self.engine.abort(sequence_id, self._catch_up())
            progress.has_failed = True
            progress.bell.ring()
            self.set_timer()

    def set_speed(self, factor: float) -> None:
        """Run at `factor` of the normal speed; 0 hangs."""
        self._catch_up()
        self._pace.change(self._speed * factor)
        self.set_timer()

    def kill(self) -> None:
        """The engine is dead: whatever it was doing fails."""
        self.stop()
        self._is_dead = True
        for progress in self._live.values():
            progress.has_failed = True
            progress.bell.ring()
        self._live.clear()

    def stop(self) -> None:
        """Play no more steps."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def set_timer(self) -> None:
        """Set the timer to the end of the engine's step."""
        self.stop()
        due = self.engine.next_step_at()
        if due is None and not self._live:
            self.idle.set()
            return
        self.idle.clear()
        if due is not None and self._pace.speed > 0 and not self._is_dead:
            self._timer = self._loop.call_at(self._pace.loop_time(due), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._catch_up()
        self.set_timer()

    def _catch_up(self) -> float:
        """Play all steps that have ended by now. A busy loop falls behind: then several tokens come at once."""
        now = self._pace.now()
        if self._group is not None:
            self._group.catch_up(now)
        else:
            while self.play_step(now):
                pass
        return now

    def play_step(self, now: float) -> bool:
        """Play the next step if it has ended by `now`. Return False if it has not."""
        report = self.engine.step(now)
        if report is None:
            return False
        for sequence_id in report.tokens:
            if (progress := self._live.get(sequence_id)) is not None:
                progress.produced += 1
                progress.bell.ring()
        for milestone in report.milestones:
            self._reach(milestone)
        self._notify_fetches()
        return True

    def _notify_fetches(self) -> None:
        for wanted in self.engine.take_fetches():
            if self.errands is not None:
                self.errands.fetch(self, wanted)

    def _reach(self, milestone: Milestone) -> None:
        progress = self._live.get(milestone.sequence_id)
        if progress is None:
            return
        if milestone.kind is MilestoneKind.FIRST_TOKEN:
            progress.first = milestone
        else:
            progress.end = milestone
            del self._live[milestone.sequence_id]
            progress.bell.ring()
            if milestone.reason != ABORTED:
                self.books.enter(progress.sequence, progress.submitted_at, progress.first, milestone)
                if self.errands is not None:
                    self.errands.ended(self, milestone)
