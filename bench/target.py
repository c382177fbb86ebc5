"""One thing that a bench is held to: wanted beside measured, as the last lines of its table say it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that is wanted, and what was found."""

    wanted: str
    bound: float
    found: float
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        return self.found >= self.bound if self.at_least else self.found <= self.bound

    def __str__(self) -> str:
        word = "at least" if self.at_least else "at most"
        verdict = "ok   " if self.is_met else "SHORT"
        return f"{verdict} {self.wanted}: wanted {word} {self.bound:g}, found {self.found:.3f}"
