"""Improves a placement by local search over a moving window: the best schedule found, not a proven optimum.

Requests of a window are moved one by one, alone or with the later requests of their conversation, to another engine or
to a later time; a move stays if the total lateness falls from the window's start to the horizon behind its end. Then
the engines are played to the end of the window and the next one begins. The whole is swept several times.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from bench.clairvoyant.schedule import PlayedEngine, Player, Schedule, lateness_of
from simulator.profile import Profile
from simulator.traces import Trace

WINDOW_S = 120.0
HORIZON_S = 900.0
"""How far behind a window's end the effects of a move are priced."""

HOLDS_S = (0.0, 0.25, 0.5, 1.0, 2.0)

MAX_TWINS = 50
MAX_FOLLOWERS = 400


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is spent on one sweep."""

    seconds: float
    seed: int = 0
    window_s: float = WINDOW_S
    horizon_s: float = HORIZON_S


class Search:
    """One trace, its placement as far as it has been improved."""

    def __init__(self, trace: Trace, profile: Profile, engines: int, start: Schedule) -> None:
        self._player = Player(trace, profile)
        self._count = engines
        self.places = list(start.engines)
        self.holds = {index: hold for index, hold in enumerate(start.holds_s) if hold}
        self._times = [one.at_s for one in trace.arrivals]
        self._followers = followers(trace)
        self.tried = self.kept = 0

    @property
    def schedule(self) -> Schedule:
        """The placement now."""
        return Schedule(tuple(self.places), tuple(self.holds.get(index, 0.0) for index in range(len(self.places))))

    def sweep(self, effort: Effort, note: Callable[[float], None] = lambda _at_s: None) -> None:
        """Go once through the trace, for about `effort.seconds` of the processor's time."""
        random = Random(effort.seed)
        states = [self._player.fresh() for _ in range(self._count)]
        end_s = self._times[-1] + 1e-6
        from_s, begun = 0.0, time.process_time()
        while from_s < end_s:
            to_s = min(from_s + effort.window_s, end_s)
            budget_s = effort.seconds * to_s / end_s - (time.process_time() - begun)
            self._improve(states, from_s, to_s, effort.horizon_s, budget_s, random)
            for place, state in enumerate(states):
                self._player.play(state, self._on(place, from_s, to_s), self.holds, to_s)
            note(to_s)
            from_s = to_s

    def _on(self, place: int, from_s: float, to_s: float) -> list[int]:
        """Requests of one engine that are sent in [from_s, to_s), held ones by when they are sent."""
        begin = bisect_left(self._times, from_s - max(HOLDS_S))
        end = bisect_left(self._times, to_s)
        return [
            index
            for index in range(begin, end)
            if self.places[index] == place and from_s <= self._times[index] + self.holds.get(index, 0.0) < to_s
        ]

    def _price(self, state: PlayedEngine, place: int, from_s: float, to_s: float) -> float:
        """Total lateness of what one engine still has and receives until `to_s`, played until it is idle."""
        done = self._player.play(state.copy(), self._on(place, from_s, to_s), self.holds)
        return sum(map(lateness_of, done.values()))

    def _improve(
        self,
        states: Sequence[PlayedEngine],
        from_s: float,
        to_s: float,
        horizon_s: float,
        budget_s: float,
        random: Random,
    ) -> None:
        window = range(bisect_left(self._times, from_s), bisect_left(self._times, to_s))
        if not window or budget_s <= 0:
            return
        begun, until_s = time.process_time(), to_s + horizon_s
        prices: dict[int, float] = {}
        while time.process_time() - begun < budget_s:
            index = random.choice(window)
            moved = [index]
            before = self.places[index], self.holds.get(index, 0.0)
            place, hold = before
            if random.random() < 0.15 and place < self._count:
                hold = random.choice(HOLDS_S)
            else:
                place = random.randrange(self._count)
                if random.random() < 0.5:
                    moved += [other for other in self._followers[index] if self.places[other] == before[0]]
            if (place, hold) == before:
                continue
            touched = {before[0], place}
            for engine in touched - prices.keys():
                prices[engine] = self._price(states[engine], engine, from_s, until_s)
            self._move(moved, place, index, hold)
            after = {engine: self._price(states[engine], engine, from_s, until_s) for engine in touched}
            self.tried += 1
            if sum(after.values()) < sum(prices[engine] for engine in touched) - 1e-9:
                prices |= after
                self.kept += 1
            else:
                self._move(moved, before[0], index, before[1])

    def _move(self, moved: Sequence[int], place: int, index: int, hold: float) -> None:
        for one in moved:
            self.places[one] = place
        if hold:
            self.holds[index] = hold
        else:
            self.holds.pop(index, None)


def followers(trace: Trace) -> list[list[int]]:
    """Return for each request the later ones whose prompts contain the block in the middle of its own prompt.

    Requests whose middle block begins too many prompts (a system prompt) have no followers.
    """
    middles: dict[int, list[int]] = defaultdict(list)
    found: list[list[int]] = [[] for _ in trace.arrivals]
    for index, arrival in enumerate(trace.arrivals):
        chain = arrival.blocks
        for block in chain:
            for earlier in middles.get(block, ()):
                found[earlier].append(index)
        if chain and len(middles[chain[len(chain) // 2]]) < MAX_TWINS:
            middles[chain[len(chain) // 2]].append(index)
    return [later if len(later) <= MAX_FOLLOWERS else [] for later in found]
