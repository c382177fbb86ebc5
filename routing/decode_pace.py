"""How a decode step grows with the sequences in it, learned from streams whose prompt another engine computed.

Such streams are not stalled by prefill, so that both coefficients of a line can be learned: seconds of a step and
seconds of each sequence. `routing.cost` learns a factor on a prior's line instead, stalls included: right for the load
of the moment only; how many an engine could bear lies beyond it. Where supply decisions are on, streams of engines that
do both count as well, without the seconds that prefill took beside them. Reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from routing.cost import CostPrior

ENGINE_MEMORY, FLEET_MEMORY = 60.0, 400.0
"""Streams after which the old have faded."""

FLEET_WEIGHT = 20.0
"""An engine is taken to be like the fleet as if so many of its streams had shown it."""

PRIOR_SEQUENCES, PRIOR_WEIGHT = (1.0, 32.0), 0.5
"""Streams that the prior's line is taken to have shown, scaled to what was seen."""

MIN_TOKENS = 8
"""Shorter answers say more of the step in which they began."""

OUTLIER = 4.0
"""A pace above this many times the mean counts as this many times."""

MIN_BASE_SHARE = 0.1
"""Of the mean pace, which a step takes at least without any sequence."""

MAX_STALLED_SHARE = 0.5
"""Of a stream's seconds: where prefill took more, what is left says little."""

MIN_LEARNED = 8.0
"""Streams of the fleet after which the line is known."""


@dataclass(slots=True)
class _Sums:
    """Decayed sums of sequences x and seconds y."""

    memory: float
    n: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def observe(self, x: float, y: float) -> None:
        keep = 1 - 1 / self.memory
        self.n, self.x, self.y = self.n * keep + 1, self.x * keep + x, self.y * keep + y
        self.xx, self.xy = self.xx * keep + x * x, self.xy * keep + x * y

    def add(self, other: _Sums, weight: float) -> None:
        self.n += weight * other.n
        self.x += weight * other.x
        self.y += weight * other.y
        self.xx += weight * other.xx
        self.xy += weight * other.xy


@dataclass(slots=True)
class DecodePace:
    """One per router; by slot."""

    prior: CostPrior = field(default_factory=CostPrior)
    _fleet: _Sums = field(default_factory=lambda: _Sums(FLEET_MEMORY))
    _engines: dict[int, _Sums] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether streams have shown the line, and not the prior alone."""
        return self._fleet.n >= MIN_LEARNED

    def observe(self, slot: int, running: float, tokens: int, seconds: float, *, stalled_s: float = 0.0) -> None:
        """Record that a stream made `tokens` after its first in `seconds`, with about `running` sequences beside it.

        `stalled_s`: of these, the seconds that prefill took on its engine.
        """
        if tokens < MIN_TOKENS or seconds <= 0 or stalled_s > MAX_STALLED_SHARE * seconds:
            return
        pace_s, fleet = (seconds - max(stalled_s, 0.0)) / tokens, self._fleet
        if fleet.n:
            pace_s = min(pace_s, OUTLIER * fleet.y / fleet.n)
        fleet.observe(running, pace_s)
        self._engines.setdefault(slot, _Sums(ENGINE_MEMORY)).observe(running, pace_s)

    def forget(self, slot: int) -> None:
        """Forget an engine: another is in its slot."""
        self._engines.pop(slot, None)

    def line(self, slot: int) -> tuple[float, float]:
        """Return the seconds of a step of an engine without any sequence, and those that each sequence adds."""
        fleet, prior = self._fleet, self.prior
        if not fleet.n:
            return prior.step_base_s, prior.step_per_sequence_s
        sums = _Sums(0.0)
        sums.add(fleet, FLEET_WEIGHT / fleet.n)
        own = self._engines.get(slot)
        if own is not None:
            sums.add(own, 1.0)
        scale = sums.y / (sums.n * prior.step_base_s + sums.x * prior.step_per_sequence_s)
        for running in PRIOR_SEQUENCES:
            pace_s = scale * (prior.step_base_s + running * prior.step_per_sequence_s)
            sums.add(_Sums(0.0, 1.0, running, pace_s, running * running, running * pace_s), PRIOR_WEIGHT)
        mean_x, mean_y = sums.x / sums.n, sums.y / sums.n
        spread = sums.xx / sums.n - mean_x * mean_x
        each_s = max(0.0, (sums.xy / sums.n - mean_x * mean_y) / spread)
        if mean_x > 0:
            each_s = min(each_s, (1 - MIN_BASE_SHARE) * mean_y / mean_x)
        return mean_y - each_s * mean_x, each_s
