"""How many engines of a pool should prefill and how many decode, and which one changes its role next.

Both kinds of work are expressed in engines: prefill asked for and queued, and sequences decoding, each as the number of
engines that could just bear it within the SLO. The worse-off kind is given one engine of the other where that makes the
worst pressure clearly smaller; the same rule backwards would make it larger again, so it does not flap. After Arrow and
TetriInfer, which move engines by predicted TTFT and TPOT. Decides only: applies nothing, reads no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp

from routing.candidates import Candidates
from routing.facts import Role
from routing.ledger import StreamObjective

ONE_ENGINE = 0.9
"""Part of what one engine more can lower a pressure by that suffices: in a large pool one engine lowers it little."""


@dataclass(frozen=True, slots=True)
class RoleTerms:
    """What the split is held to. Seconds; shares are of the engines whose role may change."""

    ttft_s: float = 2.0
    tpot_s: float = 0.05
    decay_s: float = 8.0
    """Decay time constant of prefill demand; decode cannot wait, so its demand decays twice as fast."""
    peak_decay_s: float = 20.0
    """How fast a peak of need is forgotten: where bursts of both kinds alternate, the split is to bear both."""
    forecast_s: float = 20.0
    """Decodes pile up for as long as answers last: how far ahead their growth is taken to go on."""
    min_role_s: float = 60.0
    """An engine keeps a role at least this long."""
    min_improvement: float = 0.15
    """By how much of itself the worst pressure must fall for one engine to move, as far as one engine can lower it."""
    min_overload_ratio: float = 2.0
    """How many times the pressure of those that give an engine the worst one must be where they would then be short."""
    min_pressure: float = 0.8
    """Below this pressure no role changes."""
    max_prefill_utilization: float = 1.0
    """The share of its time that a prefill engine may compute; what has to wait too long counts beside it."""
    max_changes_per_minute_ratio: float = 1.0
    """At most this share of the engines changes role within a minute; one always may."""
    min_prefill_engines: int = 1
    min_decode_engines: int = 1

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s", "decay_s", "peak_decay_s", "max_prefill_utilization"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be > 0")
        if not 0 < self.min_improvement < 1:
            raise ValueError("min_improvement: must be between 0 and 1")
        if self.min_overload_ratio < 1:
            raise ValueError("min_overload_ratio: must be >= 1")
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
    """One engine's new role, and the pressures (need by engines there) that speak for it."""

    engine: str
    role: Role
    prefill_pressure: float
    decode_pressure: float


@dataclass(frozen=True, slots=True)
class EngineNeed:
    """How many engines each kind of work could just keep busy."""

    prefill: float
    decode: float

    def after_peak(self, peak: EngineNeed, keep: float) -> EngineNeed:
        """This need, or what is kept of one that was greater, each kind by itself."""
        prefill, decode = max(0.0, peak.prefill - self.prefill), max(0.0, peak.decode - self.decode)
        return EngineNeed(self.prefill + keep * prefill, self.decode + keep * decode)


class RoleBalancer:
    """Splits one pool into roles. Fed with demand and the engines present; remembers its own changes."""

    def __init__(self, terms: RoleTerms | None = None) -> None:
        self.terms = terms or RoleTerms()
        self.changes = 0
        self._moved_s: deque[float] = deque()
        self._prefill_rate = 0.0
        self._decode = 0.0
        self._decode_growth = 0.0
        self._observed_s: float | None = None
        self._peak = EngineNeed(0.0, 0.0)

    def observe(self, workers: Sequence[PoolEngine], prefill_s: float, now_s: float) -> EngineNeed:
        """Record that `prefill_s` of prefill was requested since the last call."""
        # A draining engine finishes its decodes itself: they need no other engine.
        decode = sum(worker.decode_need for worker in workers if not worker.is_draining)
        if self._observed_s is None:
            self._observed_s, self._decode = now_s, decode
        span_s, self._observed_s = max(0.0, now_s - self._observed_s), max(now_s, self._observed_s)
        if span_s > 0:
            self._learn(prefill_s, decode, span_s)
        self._peak = self._need(workers).after_peak(self._peak, exp(-span_s / self.terms.peak_decay_s))
        return self._peak

    def _learn(self, prefill_s: float, decode: float, span_s: float) -> None:
        keep, keep_decode = exp(-span_s / self.terms.decay_s), exp(-2 * span_s / self.terms.decay_s)
        self._prefill_rate = keep * self._prefill_rate + (1 - keep) * prefill_s / span_s
        before, self._decode = self._decode, keep_decode * self._decode + (1 - keep_decode) * decode
        growth = (self._decode - before) / span_s
        self._decode_growth = keep_decode * self._decode_growth + (1 - keep_decode) * growth

    def _need(self, workers: Sequence[PoolEngine]) -> EngineNeed:
        # What is owed has to be done within the TTFT objective, beside new arrivals.
        owed = sum(worker.owed_s for worker in workers)
        waits = max(0.0, owed - len(workers) * self.terms.ttft_s / 4) / self.terms.decay_s
        coming = max(0.0, self._decode_growth) * self.terms.forecast_s
        return EngineNeed(self._prefill_rate / self.terms.max_prefill_utilization + waits, self._decode + coming)

    def next_change(self, workers: Sequence[PoolEngine], need: EngineNeed, now_s: float) -> RoleChange | None:
        """The next role change; None where none is worth it."""
        prefill, decode = _split(workers)
        if not prefill or not decode:
            return None
        now = _pressures(need, len(prefill), len(decode))
        if max(now) < self.terms.min_pressure or not self._may_move(workers, now_s):
            return None
        if now[0] > now[1]:
            return self._move(prefill, decode, need, Role.PREFILL, now, now_s)
        return self._move(decode, prefill, need, Role.DECODE, now, now_s)

    def change_applied(self, now_s: float) -> None:
        """A change was carried out."""
        self.changes += 1
        self._moved_s.append(now_s)

    def _move(
        self,
        receivers: Sequence[PoolEngine],
        givers: Sequence[PoolEngine],
        need: EngineNeed,
        role: Role,
        now: tuple[float, float],
        now_s: float,
    ) -> RoleChange | None:
        more, fewer = len(receivers) + 1, len(givers) - 1
        if role is Role.PREFILL:
            then, min_engines = _pressures(need, more, fewer), self.terms.min_decode_engines
            left = then[1]
        else:
            then, min_engines = _pressures(need, fewer, more), self.terms.min_prefill_engines
            left = then[0]
        wanted = min(self.terms.min_improvement, ONE_ENGINE / more)
        if fewer < min_engines or max(then) > max(now) * (1 - wanted):
            return None
        if left > 1 and max(now) < self.terms.min_overload_ratio * left:
            return None
        free = [one for one in givers if one.may_change and now_s - one.since_s >= self.terms.min_role_s]
        if not free:
            return None
        # The engine with the least to finish in its old role.
        chosen = min(free, key=_unfinished)
        return RoleChange(chosen.name, role, *now)

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


def _pressures(need: EngineNeed, prefill: int, decode: int) -> tuple[float, float]:
    return need.prefill / max(prefill, 1e-9), need.decode / max(decode, 1e-9)


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


class PairsOnlyGate:
    """Opens to pairs, and to single engines if there are no pairs."""

    stream_objective: StreamObjective | None = None

    def admits(self, candidates: Candidates, at: int) -> bool:
        """Whether another engine prefills here, if any does anywhere."""
        return not candidates.prefillers or candidates.prefillers[at] is not None
