"""What an engine takes, in seconds: learned online from first-token and token times seen on the wire.

The fleet has one line (seconds against work) and each engine one factor on it. So engines that are alike stay alike
until there is evidence, a new one starts from what its siblings showed, and an engine that was given short prompts only
still prices long ones rightly. Makes no choice and reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

CONTEXT_SCALE_TOKENS = 100_000.0
"""L0 in cold x (1 + context / L0): where attention costs as much as all else for a model of a few dozen layers. A prior
only; what matters is that a million tokens are not priced like a hundred prompts of ten thousand."""

FLEET_DECAY = 0.998
"""The fleet's line remembers about 500 observations: slow beside the engines' factors, so that one engine which changes
moves its own factor and not everybody's line."""

OUTLIER = 4.0
"""A point above this many times what was expected (a pause, an engine's first step) counts as this many times."""

FIRST_STEP, FIRST_SCALE_STEP, LAST_STEP = 1 / 8, 1 / 4, 1 / 20
"""How far a factor moves towards what was seen. An engine's: as if eight observations had said 1 before the first. That
of a line: as if four had. Both end as means over about twenty."""

PRIOR_DECAY, LEAST_PRIOR = 0.99, 0.1
"""How a line's prior fades, and what is left of it, in observations."""

DRIFT = 0.01
"""When the fleet's line has moved by this much, all engines are told: below it they would differ by less than a tie."""


@dataclass(slots=True)
class Factor:
    """How many times the expected seconds were really taken: a mean that begins at 1 and forgets."""

    step: float
    value: float = 1.0

    def observe(self, ratio: float) -> None:
        """What was seen was `ratio` times what was expected."""
        self.value += self.step * (min(ratio, OUTLIER * self.value) - self.value)
        self.step = max(LAST_STEP, self.step / (1 + self.step))


@dataclass(slots=True)
class Line:
    """y = intercept + slope x, by least squares over decayed sums and a prior that gives way in size, not in shape.

    Errors are weighed against the prior's value, so that a hundred short prompts count as much as a hundred long ones.
    The prior stands for `weight` observations, half at `x = 0`, half at `x = reach`, times the factor by which what was
    seen differs from it. It fades to a trace, which keeps the line defined while all x are alike. Both coefficients
    stay positive.
    """

    prior_intercept: float
    prior_slope: float
    reach: float
    weight: float = 2.0
    decay: float = FLEET_DECAY
    w: float = 0.0
    wx: float = 0.0
    wy: float = 0.0
    wxx: float = 0.0
    wxy: float = 0.0
    scale: Factor = field(default_factory=lambda: Factor(FIRST_SCALE_STEP))
    intercept: float = field(init=False)
    slope: float = field(init=False)

    def __post_init__(self) -> None:
        self.intercept = self.prior_intercept
        self.slope = self.prior_slope

    def observe(self, x: float, y: float) -> None:
        """Learn one point; one far above the line is bounded (`OUTLIER`)."""
        y = min(y, OUTLIER * self.at(x))
        expected = self.prior_intercept + self.prior_slope * x
        keep, weight = self.decay, 1.0 / (expected * expected)
        self.w = self.w * keep + weight
        self.wx = self.wx * keep + weight * x
        self.wy = self.wy * keep + weight * y
        self.wxx = self.wxx * keep + weight * x * x
        self.wxy = self.wxy * keep + weight * x * y
        self.scale.observe(y / expected)
        self.weight = max(LEAST_PRIOR, self.weight * PRIOR_DECAY)
        self._fit()

    def at(self, x: float) -> float:
        """The line's value."""
        return self.intercept + self.slope * x

    def _fit(self) -> None:
        near, reach, scale = self.prior_intercept, self.reach, self.scale.value
        far = near + self.prior_slope * reach
        near_weight, far_weight = self.weight / 2 / (near * near), self.weight / 2 / (far * far)
        w = self.w + near_weight + far_weight
        wx = self.wx + far_weight * reach
        wy = self.wy + near_weight * near * scale + far_weight * far * scale
        wxx = self.wxx + far_weight * reach * reach
        wxy = self.wxy + far_weight * reach * far * scale
        slope = (w * wxy - wx * wy) / (w * wxx - wx * wx)
        self.slope = max(slope, self.prior_slope * 1e-3)
        self.intercept = max((wy - self.slope * wx) / w, near * 1e-3)


@dataclass(slots=True)
class Pace:
    """One line for the fleet, one factor per slot, and the coefficients they make for each slot."""

    line: Line
    factors: list[Factor] = field(default_factory=list)
    intercepts: list[float] = field(default_factory=list)
    slopes: list[float] = field(default_factory=list)
    _told: tuple[float, float] = (0.0, 0.0)

    def reach(self, slots: int) -> None:
        """Have room for this many slots."""
        for slot in range(len(self.factors), slots):
            self.factors.append(Factor(FIRST_STEP))
            self.intercepts.append(0.0)
            self.slopes.append(0.0)
            self.forget(slot)

    def forget(self, slot: int) -> None:
        """A new engine stands in this slot: it is taken to be like the others on average."""
        others = [factor.value for each, factor in enumerate(self.factors) if each != slot]
        self.factors[slot] = Factor(FIRST_STEP, sum(others) / len(others) if others else 1.0)
        self._tell(slot)

    def observe(self, slot: int, x: float, y: float) -> None:
        """Learn one point of one engine: first the fleet, as if the engine were like the others, then the engine."""
        line, factor = self.line, self.factors[slot]
        line.observe(x, y / factor.value)
        factor.observe(y / line.at(x))
        told_intercept, told_slope = self._told
        if abs(line.intercept - told_intercept) > DRIFT * told_intercept or (
            abs(line.slope - told_slope) > DRIFT * told_slope
        ):
            self._told = (line.intercept, line.slope)
            for each in range(len(self.factors)):
                self._tell(each)
        else:
            self._tell(slot)

    def _tell(self, slot: int) -> None:
        factor = self.factors[slot].value
        self.intercepts[slot] = factor * self.line.intercept
        self.slopes[slot] = factor * self.line.slope


@dataclass(frozen=True, slots=True)
class Prior:
    """What an engine is taken to do before it was seen: a mid-sized model on one modern GPU."""

    prefill_overhead_s: float = 0.015
    seconds_per_token: float = 1 / 12_000
    step_base_s: float = 0.012
    step_per_sequence_s: float = 0.0001
    residence_s: float = 5.0


class CostBook:
    """Per-slot lists of coefficients, and the learning behind them."""

    def __init__(self, prior: Prior | None = None) -> None:
        self.prior = prior or Prior()
        self._prefill = Pace(Line(self.prior.prefill_overhead_s, self.prior.seconds_per_token, reach=16_384.0))
        self._step = Pace(Line(self.prior.step_base_s, self.prior.step_per_sequence_s, reach=64.0))
        self.prefill_overhead_s = self._prefill.intercepts
        self.seconds_per_token = self._prefill.slopes
        self.step_base_s = self._step.intercepts
        self.step_per_sequence_s = self._step.slopes
        self.residence_s: list[float] = []
        """How long a sequence holds its KV after its first token, on average."""

    def reach(self, slots: int) -> None:
        """Have room for this many slots."""
        self._prefill.reach(slots)
        self._step.reach(slots)
        self.residence_s.extend([self.prior.residence_s] * (slots - len(self.residence_s)))

    def forget(self, slot: int) -> None:
        """A new engine stands in this slot: start from what the fleet has shown."""
        self._prefill.forget(slot)
        self._step.forget(slot)
        self.residence_s[slot] = self.prior.residence_s

    def observe_first_token(self, slot: int, work_tokens: float, seconds: float) -> None:
        """A first token came `seconds` after a request was placed with `work_tokens` (its own included) before it."""
        self._prefill.observe(slot, work_tokens, seconds)

    def observe_decode(self, slot: int, running: float, tokens: int, seconds: float) -> None:
        """After its first token a sequence made `tokens` more in `seconds`, with about `running` beside it."""
        self.residence_s[slot] += 0.05 * (seconds - self.residence_s[slot])
        if tokens >= 1:
            self._step.observe(slot, running, seconds / tokens)


def prefill_work(cold_tokens: float, context_tokens: float) -> float:
    """Cold tokens weighted by the context they attend to, in tokens at context zero: cold x (1 + context / L0).

    Published by Mooncake and DistServe as a quadratic fit of prefill time; here `context` is the prompt's middle, warm
    part included, since each cold token attends to all before it.
    """
    return cold_tokens * (1.0 + (context_tokens - cold_tokens / 2) / CONTEXT_SCALE_TOKENS)
