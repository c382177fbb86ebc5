"""What an engine takes, in seconds: learned online per engine from first-token and token times seen on the wire.

A few decayed sums per engine and a prior shared by the whole fleet, so that the first request is sane and a new engine
starts from what its siblings showed. Makes no choice and reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

CONTEXT_SCALE_TOKENS = 100_000.0
"""L0 in cold x (1 + context / L0): where attention costs as much as all else for a model of a few dozen layers. A prior
only; what matters is that a million tokens are not priced like a hundred prompts of ten thousand."""

FLEET_DECAY = 0.998
"""The fleet's lines remember about 500 observations, ten times what an engine's do: the built-in prior, with the weight
of four, then moves what a new engine starts from by a hundredth, not by a tenth."""


@dataclass(slots=True)
class Line:
    """y = intercept + slope x, by least squares over decayed sums and a prior that never decays.

    The prior stands for `weight` observations, half at `x = 0`, half at `x = reach`. Both coefficients stay positive.
    """

    prior_intercept: float
    prior_slope: float
    reach: float
    weight: float = 4.0
    decay: float = 0.98
    n: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    intercept: float = field(init=False)
    slope: float = field(init=False)

    def __post_init__(self) -> None:
        self.intercept = self.prior_intercept
        self.slope = self.prior_slope

    def observe(self, x: float, y: float) -> None:
        """Learn one point. A point far above the line (a pause, an engine's first step) counts as four times it."""
        y = min(y, 4.0 * max(self.at(x), self.prior_intercept))
        keep = self.decay
        self.n = self.n * keep + 1.0
        self.x = self.x * keep + x
        self.y = self.y * keep + y
        self.xx = self.xx * keep + x * x
        self.xy = self.xy * keep + x * y
        self._fit()

    def lean_on(self, other: Line) -> None:
        """Take another line's present coefficients as prior.

        An engine that happens to get only short prompts would else keep a wrong first slope for ever, and so be given
        no long ones that could mend it.
        """
        self.prior_intercept, self.prior_slope = other.intercept, other.slope

    def at(self, x: float) -> float:
        """The line's value."""
        return self.intercept + self.slope * x

    def _fit(self) -> None:
        half, far = self.weight / 2, self.prior_intercept + self.prior_slope * self.reach
        n = self.n + self.weight
        x = self.x + half * self.reach
        y = self.y + half * (self.prior_intercept + far)
        xx = self.xx + half * self.reach * self.reach
        xy = self.xy + half * self.reach * far
        slope = (n * xy - x * y) / (n * xx - x * x)
        self.slope = max(slope, self.prior_slope * 1e-3)
        self.intercept = max((y - self.slope * x) / n, self.prior_intercept * 1e-3)


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
        self.prefill_overhead_s: list[float] = []
        self.seconds_per_token: list[float] = []
        self.step_base_s: list[float] = []
        self.step_per_sequence_s: list[float] = []
        self.residence_s: list[float] = []
        """How long a sequence holds its KV after its first token, on average."""
        self._prefill: list[Line] = []
        self._step: list[Line] = []
        self._fleet_prefill = self._prefill_line(self.prior.prefill_overhead_s, self.prior.seconds_per_token)
        self._fleet_step = self._step_line(self.prior.step_base_s, self.prior.step_per_sequence_s)
        self._fleet_prefill.decay = self._fleet_step.decay = FLEET_DECAY

    def reach(self, slots: int) -> None:
        """Have room for this many slots."""
        for _ in range(slots - len(self._prefill)):
            self._prefill.append(self._prefill_line(0, 0))
            self._step.append(self._step_line(0, 0))
            for column in (
                self.prefill_overhead_s,
                self.seconds_per_token,
                self.step_base_s,
                self.step_per_sequence_s,
                self.residence_s,
            ):
                column.append(0.0)
            self.forget(len(self._prefill) - 1)

    def forget(self, slot: int) -> None:
        """A new engine stands in this slot: start from what the fleet has shown."""
        self._prefill[slot] = self._prefill_line(self._fleet_prefill.intercept, self._fleet_prefill.slope)
        self._step[slot] = self._step_line(self._fleet_step.intercept, self._fleet_step.slope)
        self.residence_s[slot] = self.prior.residence_s
        self._publish(slot)

    def observe_first_token(self, slot: int, work_tokens: float, seconds: float) -> None:
        """A first token came `seconds` after a request was placed with `work_tokens` (its own included) before it."""
        self._fleet_prefill.observe(work_tokens, seconds)
        self._prefill[slot].lean_on(self._fleet_prefill)
        self._prefill[slot].observe(work_tokens, seconds)
        self._publish(slot)

    def observe_decode(self, slot: int, running: float, tokens: int, seconds: float) -> None:
        """After its first token a sequence made `tokens` more in `seconds`, with about `running` beside it."""
        self.residence_s[slot] += 0.05 * (seconds - self.residence_s[slot])
        if tokens < 1:
            return
        self._fleet_step.observe(running, seconds / tokens)
        self._step[slot].lean_on(self._fleet_step)
        self._step[slot].observe(running, seconds / tokens)
        self._publish(slot)

    def _publish(self, slot: int) -> None:
        prefill, step = self._prefill[slot], self._step[slot]
        self.prefill_overhead_s[slot], self.seconds_per_token[slot] = prefill.intercept, prefill.slope
        self.step_base_s[slot], self.step_per_sequence_s[slot] = step.intercept, step.slope

    @staticmethod
    def _prefill_line(overhead_s: float, seconds_per_token: float) -> Line:
        return Line(overhead_s, seconds_per_token, reach=16_384.0)

    @staticmethod
    def _step_line(base_s: float, per_sequence_s: float) -> Line:
        return Line(base_s, per_sequence_s, reach=64.0)


def prefill_work(cold_tokens: float, context_tokens: float) -> float:
    """Cold tokens weighted by the context they attend to, in tokens at context zero: cold x (1 + context / L0).

    Published by Mooncake and DistServe as a quadratic fit of prefill time; here `context` is the prompt's middle, warm
    part included, since each cold token attends to all before it.
    """
    return cold_tokens * (1.0 + (context_tokens - cold_tokens / 2) / CONTEXT_SCALE_TOKENS)
