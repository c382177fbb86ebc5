"""One thing that a bench is held to: wanted beside measured, as the last lines of its table say it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that is wanted, and what was found."""

    wanted: str
    bound: float
    found: float
    is_minimum: bool = False

    @property
    def is_met(self) -> bool:
        return self.found >= self.bound if self.is_minimum else self.found <= self.bound

    def __str__(self) -> str:
        relation = "at least" if self.is_minimum else "at most"
        verdict = "ok   " if self.is_met else "SHORT"
        return f"{verdict} {self.wanted}: wanted {relation} {self.bound:g}, found {self.found:.3f}"
