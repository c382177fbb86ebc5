"""Cost model of an engine, in seconds: learned online from the first-token and token times of responses.

The shape is a prior's (a base plus a slope per token). Learned are a factor per engine that leans on the fleet's while
little is seen, how prefill work grows with context, and how long prompts and undisturbed streams usually take. So equal
engines stay equal until there is evidence, a new engine starts from the values of its siblings, and a queue before a
few small requests cannot reduce the slope to zero. Makes no choice and reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log, sqrt

OUTLIER = 4.0
"""A ratio above this many times the mean (a pause, an engine's first step) counts as this many times."""

MAX_STEP = 0.25
"""How far towards itself one observation moves the mean at most, however much it weighs."""


@dataclass(slots=True)
class RunningRatio:
    """A weighted mean that forgets. Weights are in observations of usual size.

    `total_weight` is how much has been observed in all; beyond `memory` the old fades as the new comes.
    """

    memory: float
    value: float = 1.0
    total_weight: float = 0.0

    def observe(self, ratio: float, weight: float = 1.0) -> None:
        """What was seen was `ratio` times what was expected."""
        if weight <= 0:
            return
        self.total_weight = total = self.total_weight + weight
        step, value = weight / (min(self.memory, total)), self.value
        limit = OUTLIER * value
        self.value = value + (min(MAX_STEP, step)) * ((min(ratio, limit)) - value)

    def shrunk_towards(self, other: RunningRatio, prior_weight: float) -> float:
        """Return the mean as if `prior_weight` observations had had the value of `other`."""
        return (self.total_weight * self.value + prior_weight * other.value) / (self.total_weight + prior_weight)


CONTEXT_SCALE_TOKENS = 100_000.0
"""L0 before anything was seen: where attention costs as much as all else for a model of a few dozen layers."""

MIN_SCALE_TOKENS = 10_000.0
"""No model's attention outweighs the rest of it sooner; what looks so is a queue."""

GROWTH_MEMORY = 300.0
"""Observations after which the old has faded."""

MIN_TOKENS = 2_000.0
"""Shorter prefills say more of the step in flight than of themselves."""

MAX_DEVIATION = 2.0
"""Deviations are clipped: an observation beyond this multiple of the prediction, either way, counts as this
multiple."""

PRIOR_TOKENS = (4_000.0, 16_000.0, 64_000.0)
"""Prompts without a cached token which the prior is taken to have observed, once each."""


class ContextGrowth:
    """One per fleet: engines of one model share it, whatever their speed."""

    def __init__(self) -> None:
        self.per_token = 1 / CONTEXT_SCALE_TOKENS
        self._scale = 0.0
        self._sums = [0.0] * 5
        """Of squares and products of tokens x, tokens times context q, and seconds y: xx, xq, qq, xy, qy."""

    def observe(self, cold_tokens: float, context_tokens: float, seconds: float) -> None:
        """Record the seconds of a prefill with an empty queue, normalised to the fleet's median engine."""
        if cold_tokens < MIN_TOKENS or seconds <= 0:
            return
        attended = cold_tokens * (context_tokens - cold_tokens / 2)
        if not self._scale:
            self._scale = seconds / (cold_tokens + attended * self.per_token)
            for tokens in PRIOR_TOKENS:
                square = tokens * tokens / 2
                self._add(tokens, square, self._scale * (tokens + square / CONTEXT_SCALE_TOKENS))
        expected = self._scale * (cold_tokens + attended * self.per_token)
        self._sums = [one * (1 - 1 / GROWTH_MEMORY) for one in self._sums]
        self._add(cold_tokens, attended, min(max(seconds, expected / MAX_DEVIATION), expected * MAX_DEVIATION))
        self._solve()

    def _add(self, tokens: float, attended: float, seconds: float) -> None:
        # The error of a sum of many steps grows as its root: each counts by one over its length.
        weight = 1 / (tokens + attended * self.per_token)
        products = (tokens * tokens, tokens * attended, attended * attended, tokens * seconds, attended * seconds)
        self._sums = [one + weight * product for one, product in zip(self._sums, products, strict=True)]

    def _solve(self) -> None:
        xx, xq, qq, xy, qy = self._sums
        determinant = xx * qq - xq * xq
        if determinant <= 1e-9 * xx * qq:
            return
        each, more = (xy * qq - qy * xq) / determinant, (qy * xx - xy * xq) / determinant
        if each <= 0:
            # All of it seems to be growth: as much as can be.
            self.per_token = 1 / MIN_SCALE_TOKENS
            return
        self.per_token = min(max(more / each, 0.0), 1 / MIN_SCALE_TOKENS)
        work = xx + xq * self.per_token
        self._scale = xy / work if work else self._scale


MEAN_MEMORY = 50.0
"""About how many of the last count."""


@dataclass(slots=True)
class RunningMean:
    """A mean that forgets."""

    value: float = 0.0
    total_weight: float = 0.0

    def observe(self, value: float) -> None:
        if self.total_weight < MEAN_MEMORY:
            self.total_weight += 1
        self.value += (value - self.value) / self.total_weight


PRIOR_SPREAD, SPREAD_WEIGHT = 0.7, 8.0
"""The standard deviation of the logarithms of answers' tokens, as if so many answers had shown it: between those of
public chat (0.4) and of coding agents (1.1)."""


class WorkloadAverages:
    """One per router."""

    def __init__(self, step_s: float) -> None:
        """`step_s`: seconds of a decode step without prefill, of the prior: learned steps include stalls."""
        self._step_s = step_s
        self._prefill = RunningMean()
        self._answer_tokens = RunningMean()
        self._log_tokens = RunningMean()
        self._log_squares = RunningMean()
        self.typical_answer_tokens = 0.0
        """The geometric mean of what answers have after their first token, near the median; 0 before any was seen."""
        self.answer_spread = PRIOR_SPREAD
        """The standard deviation of the logarithms of that."""

    def observe_prefill(self, own_s: float) -> None:
        """Record that a prompt was placed whose own prefill takes `own_s`."""
        if own_s > 0:
            self._prefill.observe(own_s)

    def observe_output(self, tokens: int) -> None:
        """Record that a response ended with `tokens` after its first."""
        self._answer_tokens.observe(max(tokens, 1))
        logs, squares, log_tokens = self._log_tokens, self._log_squares, log(max(tokens, 1))
        logs.observe(log_tokens)
        squares.observe(log_tokens * log_tokens)
        self.typical_answer_tokens = exp(logs.value)
        seen = logs.total_weight * max(squares.value - logs.value * logs.value, 0.0)
        self.answer_spread = sqrt(
            (seen + SPREAD_WEIGHT * PRIOR_SPREAD * PRIOR_SPREAD) / (logs.total_weight + SPREAD_WEIGHT)
        )

    @property
    def prefill_s(self) -> float:
        """What computing the cold part of a prompt takes; 0 before any was seen."""
        return self._prefill.value

    @property
    def stream_s(self) -> float:
        """What an answer would take behind its first token, were it alone; 0 before any was seen."""
        return self._answer_tokens.value * self._step_s

    @property
    def median_stream_s(self) -> float:
        """What about half of all answers would take at most behind their first token, were they alone; 0 likewise."""
        return self.typical_answer_tokens * self._step_s


FLEET_MEMORY, ENGINE_MEMORY = 500.0, 40.0
"""How many observations of usual size the fleet's factor and an engine's remember."""

PRIOR_WEIGHT = 8.0
"""An engine is taken to be like the fleet as if eight observations had said so."""

TYPICAL_WORK_TOKENS = 2_000.0
"""The prefill that counts as one observation: less says less of how long work takes, and more of what came between."""

MAX_WEIGHT = 8.0
"""However long a prompt: how work grows with context is still being learned, and one giant is not to say how fast its
engine is."""

UPDATE_THRESHOLD = 0.01
"""Relative change of the fleet's factor after which all engines are updated: less is below the tie threshold."""


@dataclass(slots=True)
class LatencyModel:
    """How long some work takes: (base + work x each) x the engine's factor."""

    base_s: float
    slope_s: float
    bases_s: list[float] = field(default_factory=list)
    """Per slot, factor included."""
    slopes_s: list[float] = field(default_factory=list)
    _fleet: RunningRatio = field(default_factory=lambda: RunningRatio(FLEET_MEMORY))
    _engines: list[RunningRatio] = field(default_factory=list)
    _published: float = 1.0

    def resize(self, slots: int) -> None:
        """Have room for this many slots."""
        for slot in range(len(self._engines), slots):
            self._engines.append(RunningRatio(ENGINE_MEMORY))
            self.bases_s.append(0.0)
            self.slopes_s.append(0.0)
            self._publish(slot)

    def forget(self, slot: int) -> None:
        """Reset the slot to the fleet's ratio: a new engine is in it."""
        self._engines[slot] = RunningRatio(ENGINE_MEMORY)
        self._publish(slot)

    @property
    def weight_seen(self) -> float:
        """In observations of usual size, of all engines."""
        return self._fleet.total_weight

    def observe(self, slot: int, work: float, seconds: float, weight: float) -> None:
        """Learn one time of one engine."""
        ratio = seconds / (self.base_s + self.slope_s * work)
        fleet = self._fleet
        fleet.observe(ratio, weight)
        # An engine's first time is bounded by what the fleet shows, not by itself.
        self._engines[slot].observe(min(ratio, OUTLIER * fleet.value), weight)
        if abs(fleet.value - self._published) > UPDATE_THRESHOLD * self._published:
            self._published = fleet.value
            for each in range(len(self._engines)):
                self._publish(each)
        else:
            self._publish(slot)

    def _publish(self, slot: int) -> None:
        """Write an engine's coefficients: its own factor, drawn towards the fleet's while little was observed."""
        factor = self._engines[slot].shrunk_towards(self._fleet, PRIOR_WEIGHT)
        self.bases_s[slot] = self.base_s * factor
        self.slopes_s[slot] = self.slope_s * factor


@dataclass(frozen=True, slots=True)
class CostPrior:
    """What an engine is taken to do before it was seen: a mid-sized model on one modern GPU."""

    prefill_overhead_s: float = 0.015
    seconds_per_token: float = 1 / 12_000
    step_base_s: float = 0.012
    step_per_sequence_s: float = 0.0001
    residence_s: float = 5.0


class CostModel:
    """Per-slot lists of coefficients, and the learning behind them."""

    def __init__(self, prior: CostPrior | None = None) -> None:
        self.prior = prior or CostPrior()
        self._prefill = LatencyModel(self.prior.prefill_overhead_s, self.prior.seconds_per_token)
        self._step = LatencyModel(self.prior.step_base_s, self.prior.step_per_sequence_s)
        self.prefill_overhead_s = self._prefill.bases_s
        self.seconds_per_token = self._prefill.slopes_s
        self.step_base_s = self._step.bases_s
        self.step_per_sequence_s = self._step.slopes_s
        self.growth = ContextGrowth()
        self.averages = WorkloadAverages(self.prior.step_base_s)
        self.residence_s: list[float] = []
        """How long a sequence holds its KV after its first token, on average."""

    def resize(self, slots: int) -> None:
        """Have room for this many slots."""
        self._prefill.resize(slots)
        self._step.resize(slots)
        self.residence_s.extend([self.prior.residence_s] * (slots - len(self.residence_s)))

    def forget(self, slot: int) -> None:
        """Reset the slot to what the fleet has shown: a new engine is in it."""
        self._prefill.forget(slot)
        self._step.forget(slot)
        self.residence_s[slot] = self.prior.residence_s

    @property
    def knows_prefill(self) -> bool:
        """Whether enough was observed of prefill for a time to be surprising."""
        return self._prefill.weight_seen >= ENGINE_MEMORY

    def observe_first_token(self, slot: int, work_tokens: float, seconds: float) -> None:
        """A first token came `seconds` after a request was placed with `work_tokens` (its own included) before it."""
        weight = min(work_tokens / TYPICAL_WORK_TOKENS, MAX_WEIGHT)
        self._prefill.observe(slot, work_tokens, seconds, weight)

    def observe_alone(self, slot: int, cold_tokens: float, context_tokens: float, seconds: float) -> None:
        """Record a first token `seconds` after a prompt was placed on an engine with an empty queue."""
        speed = self.seconds_per_token[slot] / self.prior.seconds_per_token
        self.growth.observe(cold_tokens, context_tokens, seconds / speed)

    def observe_decode(self, slot: int, running: float, tokens: int, seconds: float) -> None:
        """After its first token a sequence made `tokens` more in `seconds`, with about `running` beside it."""
        self.residence_s[slot] += 0.05 * (seconds - self.residence_s[slot])
        self.averages.observe_output(tokens)
        if tokens >= 1:
            self._step.observe(slot, running, seconds / tokens, 1.0)


def prefill_work(cold_tokens: float, context_tokens: float, growth: float = 1 / CONTEXT_SCALE_TOKENS) -> float:
    """Cold tokens weighted by the context they attend to, in tokens at context zero: cold x (1 + context x growth).

    Published by Mooncake and DistServe as a quadratic fit of prefill time; here `context` is the prompt's middle,
    cached part included, since each cold token attends to all before it. `growth` is 1 / L0, learned.
    """
    return cold_tokens * (1.0 + (context_tokens - cold_tokens / 2) * growth)
