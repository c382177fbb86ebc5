"""How many engines of a pool should prefill and how many decode, and which one changes its role next.

Each split is judged by the same recent minutes. Prefill: a queue that so many engines would have had, by which some of
the requested seconds come too late. Decode: how much of the time more sequences ran than so many engines bear within
the TPOT objective. An engine moves where another split would have missed clearly less: bursts that the present split
bears move none, and where bursts of both kinds alternate, the split bears both. Decides only: applies nothing, reads no
clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import erf, exp, log, sqrt

from routing.candidates import Candidates
from routing.facts import Role
from routing.ledger import StreamObjective

DECODE_DECAY_S = 4.0
"""Decay time constant of the sequences that decode: a stream is slow by its mean, not by a moment."""

MAX_WAIT_S = 30.0
"""Beyond which a queue is not followed: clients give up."""

URGENT_WAIT = 3.0
"""Times the TTFT objective that prompts wait where an engine is taken at once, if decoding can spare it."""

SPARE = 0.7
"""Share of the decoding engines which decoding may keep busy after one of them was taken at once."""

MAX_USE = 0.85
"""Share of its time that a prefill engine computes at most: queues of single engines are not one queue."""

WAIT_SHARE = 0.9
"""Of the TTFT objective, which a prompt may wait: its own prefill takes the rest."""

LEVELS = (0.7, 0.85, 1.0)
"""Shares of what is allowed from which on a third each counts as missed: a split is left before it misses all."""

MAX_LATE = 0.5
"""Streams that a prompt may make late on a decode engine, where its own first token would be late otherwise."""

EQUAL = 0.01
"""Splits whose shares differ by less are equal: the nearest is taken."""


@dataclass(frozen=True, slots=True)
class RoleTerms:
    """What the split is held to. Seconds; shares are of the engines whose role may change."""

    ttft_s: float = 2.0
    """TTFT objective, in seconds."""
    tpot_s: float = 0.05
    """TPOT objective, in seconds."""
    window_s: float = 120.0
    """Time constant, in seconds, with which older traffic decays in the judgement of a split."""
    min_role_s: float = 60.0
    """Minimum seconds that an engine keeps a role."""
    min_improvement: float = 0.05
    """Minimum fall of the share of missed work for which an engine changes role."""
    max_changes_per_minute_ratio: float = 1.0
    """Maximum share of the engines that change role within a minute; one always may."""
    min_prefill_engines: int = 1
    """Minimum number of engines that prefill."""
    min_decode_engines: int = 1
    """Minimum number of engines that decode."""

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s", "window_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be > 0")
        if not 0 < self.min_improvement < 1:
            raise ValueError("min_improvement: must be between 0 and 1")
        if self.min_role_s < 0 or not 0 < self.max_changes_per_minute_ratio <= 1:
            raise ValueError("min_role_s: must be >= 0; max_changes_per_minute_ratio: must be above 0, at most 1")
        if min(self.min_prefill_engines, self.min_decode_engines) < 1:
            raise ValueError("min_prefill_engines, min_decode_engines: must be >= 1")


@dataclass(frozen=True, slots=True)
class PoolEngine:
    """One engine now. `decode_load` is the share of its capacity within the TPOT objective and its KV cache that its
    decoding takes; `owed_s` the prefill queued there.
    """

    name: str
    role: Role
    since_s: float
    """When it took that role."""
    owed_s: float = 0.0
    decoding: float = 0.0
    """Sequences."""
    decode_load: float = 0.0
    decode_need: float = 0.0
    """Engines that its decode load would keep at the TPOT objective's limit if it were placed on no others."""
    may_change: bool = True
    """Whether connector and engine let it do either."""

    @property
    def is_draining(self) -> bool:
        """It is to prefill, but still has decodes of its old role."""
        return self.role is Role.PREFILL and self.decoding > 0


@dataclass(frozen=True, slots=True)
class RoleChange:
    """One engine's new role, and the pressures (need by engines there) on both sides before it."""

    engine: str
    role: Role
    prefill_pressure: float
    decode_pressure: float


@dataclass(slots=True)
class _Trial:
    """What so many engines of one kind would have missed lately."""

    missed_s: float = 0.0
    """Of the prefill seconds, or engine-seconds of decoding; decayed."""
    wait_s: float = 0.0
    """What a prompt would wait now."""


class RoleBalancer:
    """Splits one pool into roles. Fed with demand and the engines present; remembers its own changes."""

    def __init__(self, terms: RoleTerms | None = None) -> None:
        self.terms = terms or RoleTerms()
        self.changes = 0
        self._moved_s: deque[float] = deque()
        self._prefill: list[_Trial] = []
        """By the number of engines that prefill, from one on."""
        self._decode: list[_Trial] = []
        self._prefill_s = self._decode_s = 0.0
        """What was requested, decayed alike."""
        self._decoding = 0.0
        """Engines that decoding would keep busy."""
        self._observed_s: float | None = None

    def observe(self, workers: Sequence[PoolEngine], prefill_s: float, now_s: float) -> None:
        """Record that `prefill_s` of prefill was requested since the last call."""
        # A draining engine finishes its decodes itself: they need no other engine.
        decode = sum(worker.decode_need for worker in workers if not worker.is_draining)
        if self._observed_s is None:
            self._observed_s, self._decoding = now_s, decode
        span_s, self._observed_s = max(0.0, now_s - self._observed_s), max(now_s, self._observed_s)
        for trials in (self._prefill, self._decode):
            while len(trials) < len(workers) - 1:
                trials.append(replace(trials[-1]) if trials else _Trial())
        if span_s > 0:
            self._learn(prefill_s, decode, span_s, len(workers))

    def _learn(self, prefill_s: float, decode: float, span_s: float, count: int) -> None:
        keep, keep_decode = exp(-span_s / self.terms.window_s), exp(-span_s / DECODE_DECAY_S)
        self._decoding += (1 - keep_decode) * (decode - self._decoding)
        # What has piled up on too few engines says how long they were too few, not how many there should be.
        decoding = min(self._decoding, float(count))
        decode_s, max_wait_s = decoding * span_s, WAIT_SHARE * self.terms.ttft_s
        self._prefill_s, self._decode_s = keep * self._prefill_s + prefill_s, keep * self._decode_s + decode_s
        for engines, trial in enumerate(self._prefill, 1):
            trial.wait_s = min(max(0.0, trial.wait_s + prefill_s / engines - MAX_USE * span_s), MAX_WAIT_S)
            trial.missed_s = keep * trial.missed_s + prefill_s * _over(trial.wait_s, max_wait_s)
        for engines, trial in enumerate(self._decode, 1):
            trial.missed_s = keep * trial.missed_s + decode_s * _over(decoding, engines)

    def missed(self, prefill: int, decode: int) -> float:
        """Return the share of recent prefill that so many engines would have done too late, and that of decoding that
        would have been too slow, summed: 0 to 2.
        """
        late = self._prefill[prefill - 1].missed_s / self._prefill_s if self._prefill_s else 0.0
        return late + (self._decode[decode - 1].missed_s / self._decode_s if self._decode_s else 0.0)

    def next_change(self, workers: Sequence[PoolEngine], now_s: float) -> RoleChange | None:
        """The next role change, by one engine towards the split that would have missed least; None where that is not
        worth it.
        """
        prefill, decode = _split(workers)
        count, now = len(workers), len(prefill)
        if not prefill or not decode or not self._prefill or not self._may_move(workers, now_s):
            return None
        step = self._urgent(now, len(decode)) or self._better(now, count)
        if not step or now + step not in self._allowed(count) or self._urgent(now + step, len(decode) - step) == -step:
            return None
        givers = decode if step > 0 else prefill
        free = [one for one in givers if one.may_change and now_s - one.since_s >= self.terms.min_role_s]
        if not free:
            return None
        # The engine with the least to finish in its old role.
        chosen = min(free, key=_unfinished)
        pressures = self._prefill_s / self.terms.window_s / now, self._decoding / len(decode)
        return RoleChange(chosen.name, Role.PREFILL if step > 0 else Role.DECODE, *pressures)

    def change_applied(self, now_s: float) -> None:
        """A change was carried out."""
        self.changes += 1
        self._moved_s.append(now_s)

    def _allowed(self, count: int) -> range:
        """Return how many of `count` engines may prefill."""
        return range(self.terms.min_prefill_engines, count - self.terms.min_decode_engines + 1)

    def _urgent(self, prefill: int, decode: int) -> int:
        """Return by how many engines of prefill the split is to change at once: traffic of another kind has come."""
        waits = [trial.wait_s for trial in self._prefill]
        if self._decoding > decode and prefill > 1 and waits[prefill - 2] < self.terms.ttft_s:
            return -1
        is_late = waits[prefill - 1] > URGENT_WAIT * self.terms.ttft_s
        return 1 if is_late and self._decoding < SPARE * (decode - 1) else 0

    def _better(self, now: int, count: int) -> int:
        """Return the step towards the split that would have missed least; 0 where it is not clearly better."""
        missed = {each: self.missed(each, count - each) for each in {*self._allowed(count), now}}
        lowest = min(missed.values())
        best = min((each for each in missed if missed[each] <= lowest + EQUAL), key=lambda each: abs(each - now))
        step = 1 if best > now else -1
        if missed[now] - missed[best] < self.terms.min_improvement or missed.get(now + step, 2.0) > missed[now]:
            return 0
        return step

    def _may_move(self, workers: Sequence[PoolEngine], now_s: float) -> bool:
        while self._moved_s and now_s - self._moved_s[0] >= 60.0:
            self._moved_s.popleft()
        max_changes = max(
            1, int(self.terms.max_changes_per_minute_ratio * sum(worker.may_change for worker in workers))
        )
        return len(self._moved_s) < max_changes


def _unfinished(worker: PoolEngine) -> tuple[float, float, str]:
    if worker.role is Role.PREFILL:
        return worker.owed_s, worker.decoding, worker.name
    return worker.decode_load, worker.decoding, worker.name


def _split(workers: Iterable[PoolEngine]) -> tuple[list[PoolEngine], list[PoolEngine]]:
    prefill: list[PoolEngine] = []
    decode: list[PoolEngine] = []
    for worker in workers:
        (prefill if worker.role is Role.PREFILL else decode).append(worker)
    return prefill, decode


def _over(value: float, bound: float) -> float:
    """Return which share of the levels of a bound a value exceeds."""
    return sum(value > level * bound for level in LEVELS) / len(LEVELS)


def decode_need(load: float, step_base_s: float, tpot_s: float) -> float:
    """Return how many engines, each as full as the TPOT objective allows, an engine's decodes would need.

    An engine that is far from full steps faster than the objective requires. What it decodes stays longer where more
    decode, and is more at a time: the tokens per second are what remains the same, not the sequences. Where it is more
    than full, what has accumulated counts in full.
    """
    step_s = step_base_s + load * max(0.0, tpot_s - step_base_s)
    return load * max(1.0, tpot_s / step_s) if load > 0 and step_s > 0 else 0.0


def decode_load(
    running: float, kv_tokens: float, capacity: float, step_base_s: float, each_s: float, tpot_s: float
) -> float:
    """The share of an engine that its decodes take: of the sequences that a step may have within the TPOT objective, or
    of its KV cache, whichever is nearer its end.
    """
    bearable = max(1.0, (tpot_s - step_base_s) / each_s) if each_s > 0 else float("inf")
    return max(running / bearable, kv_tokens / capacity if capacity > 0 else 0.0)


class RoleGate:
    """Opens to pairs, to single engines if there are no pairs, and to decode engines for what pairs would do too late.

    A burst that the prefill engines cannot compute in time goes to decode engines, where it makes fewer streams late
    than the one first token that it saves.
    """

    stream_objective: StreamObjective | None = None

    def __init__(self, terms: RoleTerms | None = None) -> None:
        """`terms`: what late means; None: decode engines compute nothing that a pair can."""
        self._terms = terms

    def admits(self, candidates: Candidates, at: int) -> bool:
        """Return whether the engine in a position, or its pair, may compute the prompt."""
        if not candidates.prefillers or candidates.prefillers[at] is not None:
            return True
        terms = self._terms
        if terms is None or candidates.engines[at].role is not Role.DECODE or not self._bears(candidates, at, terms):
            return False
        pairs = (place for place, prefiller in enumerate(candidates.prefillers) if prefiller is not None)
        return min(map(candidates.ttft_s, pairs)) > WAIT_SHARE * terms.ttft_s

    @staticmethod
    def _bears(candidates: Candidates, at: int, terms: RoleTerms) -> bool:
        """Return whether a decode engine computes the prompt in time, and its streams go on in time meanwhile."""
        running, tokens = (candidates.stalled or candidates.running)[at], candidates.typical_answer_tokens
        in_step = (candidates.in_step or candidates.running)[at] + 1
        pace_s = candidates.step_base_s[at] + candidates.step_per_sequence_s[at] * in_step
        slack_s = tokens * (terms.tpot_s - pace_s)
        if candidates.ttft_s(at) > terms.ttft_s:
            return False
        if running < 1 or slack_s <= 0:
            return running < 1
        stalled_s, spread = candidates.stalls_s[at] if candidates.stalls_s else 0.0, candidates.answer_spread
        more_late = _late_share(stalled_s + candidates.own_s[at], slack_s, spread) - _late_share(
            stalled_s, slack_s, spread
        )
        return running * more_late <= MAX_LATE


def _late_share(stall_s: float, slack_s: float, spread: float) -> float:
    """Return the share of an engine's streams that `stall_s` seconds make late, where an answer of median length is
    `slack_s` ahead of its objective. Lengths are log-normal, and at any time the long ones run.
    """
    if stall_s <= 0:
        return 0.0
    return 0.5 * (1.0 + erf((log(stall_s / slack_s) / spread - spread) / sqrt(2.0)))
