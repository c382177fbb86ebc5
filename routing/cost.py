"""What an engine takes, in seconds: learned online from first-token and token times seen on the wire.

The shape is a prior's (so much before any work, so much per token); what is learned is a factor on it for each engine,
which leans on the fleet's while little is seen, and how work grows with context (`routing.growth`). So engines that are
alike stay alike until there is evidence, a new one starts from what its siblings showed, and nothing that a queue does
to a few small requests can bend a line until work looks free. Makes no choice and reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from routing.growth import CONTEXT_SCALE_TOKENS, Growth
from routing.ratio import OUTLIER, Ratio
from routing.usual import Usual

FLEET_MEMORY, ENGINE_MEMORY = 500.0, 40.0
"""How many observations of usual size the fleet's factor and an engine's remember."""

DOUBT = 8.0
"""An engine is taken to be like the fleet as if eight observations had said so."""

USUAL_WORK_TOKENS = 2_000.0
"""The prefill that counts as one observation: less says less of how long work takes, and more of what came between."""

LARGEST_WEIGHT = 8.0
"""However long a prompt: how work grows with context is still being learned, and one giant is not to say how fast its
engine is."""

DRIFT = 0.01
"""When the fleet's factor has moved by this much, all engines are told: less than that is less than a tie."""


@dataclass(slots=True)
class Pace:
    """How long some work takes: (base + work x each) x the engine's factor."""

    base_s: float
    each_s: float
    bases_s: list[float] = field(default_factory=list)
    """Per slot, factor included."""
    eaches_s: list[float] = field(default_factory=list)
    _fleet: Ratio = field(default_factory=lambda: Ratio(FLEET_MEMORY))
    _engines: list[Ratio] = field(default_factory=list)
    _told: float = 1.0

    def reach(self, slots: int) -> None:
        """Have room for this many slots."""
        for slot in range(len(self._engines), slots):
            self._engines.append(Ratio(ENGINE_MEMORY))
            self.bases_s.append(0.0)
            self.eaches_s.append(0.0)
            self._tell(slot)

    def forget(self, slot: int) -> None:
        """A new engine stands in this slot: it is taken to be like the others."""
        self._engines[slot] = Ratio(ENGINE_MEMORY)
        self._tell(slot)

    def observe(self, slot: int, work: float, seconds: float, weight: float) -> None:
        """Learn one time of one engine."""
        ratio = seconds / (self.base_s + self.each_s * work)
        fleet = self._fleet
        fleet.observe(ratio, weight)
        # An engine's first time is bounded by what the fleet shows, not by itself.
        self._engines[slot].observe(min(ratio, OUTLIER * fleet.value), weight)
        if abs(fleet.value - self._told) > DRIFT * self._told:
            self._told = fleet.value
            for each in range(len(self._engines)):
                self._tell(each)
        else:
            self._tell(slot)

    def _tell(self, slot: int) -> None:
        factor = self._engines[slot].leaning_on(self._fleet, DOUBT)
        self.bases_s[slot] = self.base_s * factor
        self.eaches_s[slot] = self.each_s * factor


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
        self._prefill = Pace(self.prior.prefill_overhead_s, self.prior.seconds_per_token)
        self._step = Pace(self.prior.step_base_s, self.prior.step_per_sequence_s)
        self.prefill_overhead_s = self._prefill.bases_s
        self.seconds_per_token = self._prefill.eaches_s
        self.step_base_s = self._step.bases_s
        self.step_per_sequence_s = self._step.eaches_s
        self.growth = Growth()
        self.usual = Usual(self.prior.step_base_s)
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
        weight = min(work_tokens / USUAL_WORK_TOKENS, LARGEST_WEIGHT)
        self._prefill.observe(slot, work_tokens, seconds, weight)

    def observe_alone(self, slot: int, cold_tokens: float, context_tokens: float, seconds: float) -> None:
        """A first token came `seconds` after a prompt was placed where no other stood before it."""
        speed = self.seconds_per_token[slot] / self.prior.seconds_per_token
        self.growth.observe(cold_tokens, context_tokens, seconds / speed)

    def observe_decode(self, slot: int, running: float, tokens: int, seconds: float) -> None:
        """After its first token a sequence made `tokens` more in `seconds`, with about `running` beside it."""
        self.residence_s[slot] += 0.05 * (seconds - self.residence_s[slot])
        self.usual.answered(tokens)
        if tokens >= 1:
            self._step.observe(slot, running, seconds / tokens, 1.0)


def prefill_work(cold_tokens: float, context_tokens: float, growth: float = 1 / CONTEXT_SCALE_TOKENS) -> float:
    """Cold tokens weighted by the context they attend to, in tokens at context zero: cold x (1 + context x growth).

    Published by Mooncake and DistServe as a quadratic fit of prefill time; here `context` is the prompt's middle, warm
    part included, since each cold token attends to all before it. `growth` is 1 / L0, learned.
    """
    return cold_tokens * (1.0 + (context_tokens - cold_tokens / 2) * growth)
