"""Plays a fixed placement of requests on engines and prices it. Depends on simulated engines only, not on a router.

Once each request has an engine, engines do not influence each other, so a change of the placement is priced by playing
only the engines that it touches, from a saved state on.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from simulator.engine import Engine
from simulator.profile import Profile
from simulator.records import Record
from simulator.replay import engine_blocks
from simulator.sequence import Milestone, MilestoneKind
from simulator.sequence import Sequence as EngineSequence
from simulator.traces import Arrival, Trace

READER_TPOT_S = 0.05
"""Seconds per output token that a reader bears; a slower stream is late by the difference for each token."""


def lateness_s(ttft_s: float, tpot_s: float, output_tokens: int) -> float:
    """Return the objective of one request, in seconds: TTFT, and by how much its stream ends later than its reader."""
    return ttft_s + max(tpot_s - READER_TPOT_S, 0.0) * max(output_tokens - 1, 0)


def lateness_of(record: Record) -> float:
    """Return the objective of an answered request of a replay. Raises ValueError for one without a first token."""
    if record.ttft_s is None:
        raise ValueError(f"request {record.index} was not answered")
    return lateness_s(record.ttft_s, record.tpot_s or 0.0, record.output_tokens)


@dataclass(frozen=True, slots=True)
class Schedule:
    """One placement: per request its engine, and by how many seconds it is held before it is sent there."""

    engines: tuple[int, ...]
    holds_s: tuple[float, ...]


@dataclass(slots=True)
class PlayedEngine:
    """One engine at some time, with the requests it has not finished."""

    engine: Engine
    first_token_s: dict[int, float]
    """When requests in flight sent their first token, by index."""

    def copy(self) -> PlayedEngine:
        """Return an independent copy."""
        copied: PlayedEngine = pickle.loads(pickle.dumps(self, pickle.HIGHEST_PROTOCOL))  # noqa: S301 - our own bytes
        return copied


class Player:
    """Plays requests of one trace on engines of one profile."""

    def __init__(self, trace: Trace, profile: Profile) -> None:
        self.arrivals: Sequence[Arrival] = trace.arrivals
        self.profile = profile
        block = trace.block_tokens or profile.block_size
        self._sequences = [
            EngineSequence(
                str(index), one.prompt_tokens, one.output_tokens, engine_blocks(one, block, profile.block_size)
            )
            for index, one in enumerate(trace.arrivals)
        ]

    def fresh(self) -> PlayedEngine:
        """Return an idle engine with an empty cache."""
        return PlayedEngine(Engine(self.profile), {})

    def play(
        self, played: PlayedEngine, indices: Iterable[int], holds_s: Mapping[int, float], until_s: float = inf
    ) -> dict[int, Record]:
        """Send requests in order of time and play until `until_s`; returns what finished. Changes `played`.

        `indices` are in order of arrival; those due after `until_s` are not sent.
        """
        done: dict[int, Record] = {}
        engine = played.engine
        due = sorted((self.arrivals[index].at_s + holds_s.get(index, 0.0), index) for index in indices)
        for at_s, index in due:
            if at_s >= until_s:
                break
            self._note(played, engine.advance(at_s), done)
            engine.submit(self._sequences[index], at_s)
        self._note(played, engine.advance(until_s), done)
        return done

    def _note(self, played: PlayedEngine, milestones: Iterable[Milestone], done: dict[int, Record]) -> None:
        for milestone in milestones:
            index = int(milestone.sequence_id)
            if milestone.kind is MilestoneKind.FIRST_TOKEN:
                played.first_token_s[index] = milestone.at
                continue
            arrival = self.arrivals[index]
            first_s = played.first_token_s.pop(index, milestone.at)
            done[index] = Record(
                index,
                arrival.at_s,
                arrival.prompt_tokens,
                milestone.output_tokens,
                cached_tokens=milestone.cached_tokens,
                ttft_s=first_s - arrival.at_s,
                duration_s=milestone.at - arrival.at_s,
            )


def play_schedule(trace: Trace, profile: Profile, schedule: Schedule, engines: int) -> list[Record]:
    """Play a whole placement; returns a record per request, in order, with its engine as `pod`."""
    player = Player(trace, profile)
    holds = {index: hold for index, hold in enumerate(schedule.holds_s) if hold}
    found: dict[int, Record] = {}
    for engine in range(engines):
        mine = [index for index, place in enumerate(schedule.engines) if place == engine]
        found |= player.play(player.fresh(), mine, holds)
    return [found[index] for index in range(len(trace.arrivals))]
