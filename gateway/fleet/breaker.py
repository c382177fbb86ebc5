"""Circuit breaker of a pod: when to stop sending to a pod that fails, and when to try it again.

A value and its transitions; time is an argument. Knows nothing of pods, probes or requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class State(StrEnum):
    """Closed lets requests through; open lets none; on trial lets them through until the first failure."""

    CLOSED = "closed"
    OPEN = "open"
    TRIAL = "trial"


@dataclass(frozen=True, slots=True)
class Rules:
    """Thresholds of a breaker."""

    failures: int = 3
    """In a row: one may be caused by its request, three are caused by the pod."""
    trial_successes: int = 5
    """Requests that must succeed before a pod on trial is trusted again."""
    cooldown_s: float = 1.0
    """How long it stays open at first; doubles with each failed trial."""
    longest_cooldown_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Breaker:
    """One pod's. `opened`: how often it opened."""

    rules: Rules = Rules()
    state: State = State.CLOSED
    failures: int = 0
    successes: int = 0
    cooldown_s: float = 0.0
    open_until_s: float = 0.0
    opened: int = 0
    is_certain: bool = False
    """Whether it opened because nothing listens there, not because requests failed."""

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN

    @property
    def is_failing(self) -> bool:
        """Whether it has failed, with no success since."""
        return self.failures > 0 or (self.state is not State.CLOSED and not self.successes)

    def failed(self, now_s: float) -> Breaker:
        """Return the state after a failure that was the pod's fault."""
        if self.state is State.OPEN:
            return self
        if self.state is State.TRIAL or self.failures + 1 >= self.rules.failures:
            return self._opened(now_s)
        return replace(self, failures=self.failures + 1)

    def succeeded(self) -> Breaker:
        """Return the state after a successful request."""
        match self.state:
            case State.OPEN:
                # It began before the breaker opened and shows nothing about the pod now.
                return self
            case State.TRIAL if self.successes + 1 < self.rules.trial_successes:
                return replace(self, successes=self.successes + 1)
            case State.TRIAL:
                return Breaker(self.rules, opened=self.opened)
            case State.CLOSED:
                return replace(self, failures=0) if self.failures else self

    def tripped(self, now_s: float) -> Breaker:
        """Return the state after a refused connection: nothing listens there."""
        if self.is_open and self.is_certain:
            return self
        return replace(self if self.is_open else self._opened(now_s), is_certain=True)

    def _opened(self, now_s: float) -> Breaker:
        rules = self.rules
        longer = min(self.cooldown_s * 2, rules.longest_cooldown_s)
        cooldown_s = longer if self.state is State.TRIAL else rules.cooldown_s
        return Breaker(
            rules,
            State.OPEN,
            cooldown_s=cooldown_s,
            open_until_s=now_s + cooldown_s,
            opened=self.opened + 1,
        )

    def probed(self, now_s: float) -> Breaker:
        """Return the state after a successful probe: on trial, once it has cooled down."""
        if not self.is_open:
            return self
        if now_s < self.open_until_s:
            return replace(self, is_certain=False) if self.is_certain else self
        return replace(self, state=State.TRIAL, successes=0, is_certain=False)
