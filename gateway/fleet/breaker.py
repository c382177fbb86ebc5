"""Circuit breaker of a pod: when to stop sending to a pod that fails, and when to try it again.

A value and its transitions; time is an argument. Knows nothing of pods, probes or requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class BreakerState(StrEnum):
    """Closed lets requests through; open lets none; on trial lets them through until the first failure."""

    CLOSED = "closed"
    OPEN = "open"
    TRIAL = "trial"


@dataclass(frozen=True, slots=True)
class BreakerThresholds:
    """Thresholds of a breaker."""

    failures: int = 3
    """In a row: one may be caused by its request, three are caused by the pod."""
    trial_successes: int = 5
    """Requests that must succeed before a pod on trial is trusted again."""
    cooldown_s: float = 1.0
    """How long it stays open at first; doubles with each failed trial."""
    max_cooldown_s: float = 30.0


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """One pod's. `opened`: how often it opened."""

    thresholds: BreakerThresholds = BreakerThresholds()
    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    successes: int = 0
    cooldown_s: float = 0.0
    open_until_s: float = 0.0
    open_count: int = 0
    is_unreachable: bool = False
    """Whether it opened because nothing listens there, not because requests failed."""

    @property
    def is_open(self) -> bool:
        return self.state is BreakerState.OPEN

    @property
    def is_failing(self) -> bool:
        """Whether it has failed, with no success since."""
        return self.failures > 0 or (self.state is not BreakerState.CLOSED and not self.successes)

    def on_failure(self, now_s: float) -> CircuitBreaker:
        """Return the state after a failure that was the pod's fault."""
        if self.state is BreakerState.OPEN:
            return self
        if self.state is BreakerState.TRIAL or self.failures + 1 >= self.thresholds.failures:
            return self._opened(now_s)
        return replace(self, failures=self.failures + 1)

    def on_success(self) -> CircuitBreaker:
        """Return the state after a successful request."""
        match self.state:
            case BreakerState.OPEN:
                # It began before the breaker opened and shows nothing about the pod now.
                return self
            case BreakerState.TRIAL if self.successes + 1 < self.thresholds.trial_successes:
                return replace(self, successes=self.successes + 1)
            case BreakerState.TRIAL:
                return CircuitBreaker(self.thresholds, open_count=self.open_count)
            case BreakerState.CLOSED:
                return replace(self, failures=0) if self.failures else self

    def on_unreachable(self, now_s: float) -> CircuitBreaker:
        """Return the state after a refused connection: nothing listens there."""
        if self.is_open and self.is_unreachable:
            return self
        return replace(self if self.is_open else self._opened(now_s), is_unreachable=True)

    def _opened(self, now_s: float) -> CircuitBreaker:
        rules = self.thresholds
        longer = min(self.cooldown_s * 2, rules.max_cooldown_s)
        cooldown_s = longer if self.state is BreakerState.TRIAL else rules.cooldown_s
        return CircuitBreaker(
            rules,
            BreakerState.OPEN,
            cooldown_s=cooldown_s,
            open_until_s=now_s + cooldown_s,
            open_count=self.open_count + 1,
        )

    def on_healthy_probe(self, now_s: float) -> CircuitBreaker:
        """Return the state after a successful probe: on trial, once it has cooled down."""
        if not self.is_open:
            return self
        if now_s < self.open_until_s:
            return replace(self, is_unreachable=False) if self.is_unreachable else self
        return replace(self, state=BreakerState.TRIAL, successes=0, is_unreachable=False)
