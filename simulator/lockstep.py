"""Engines that step together, as the ranks of a data-parallel group with expert parallelism do.

A step of the group takes as long as that of its busiest engine, and begins for all at the same time. An engine to which
something comes meanwhile waits for its end; engines without requests take part at no cost of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Protocol


class Step(Protocol):
    """The step that one engine takes with the others."""

    start: float
    first: float


class Lockstep:
    """One group. Its engines plan a step only at `boundary`, and report it to `join`."""

    def __init__(self) -> None:
        self._start = self._end = -inf
        self._steps: list[Step] = []
        self.listeners: list[Callable[[], None]] = []
        """Called when the step in flight has become longer: timers must be set anew."""

    def boundary(self, at: float) -> float:
        """Return when an engine that is free from `at` on may begin its next step."""
        if at <= self._start:
            return self._start
        return max(at, self._end)

    def join(self, step: Step) -> None:
        """Take part with a step that begins at a boundary: all steps that begin then last as long as the longest."""
        if step.start != self._start:
            self._start, self._steps = step.start, []
        self._steps.append(step)
        max_s = max(each.first for each in self._steps)
        is_longer = any(each.first < max_s for each in self._steps if each is not step)
        for each in self._steps:
            each.first = max_s
        self._end = step.start + max_s
        if is_longer:
            for listener in self.listeners:
                listener()

    def delay(self, seconds: float) -> None:
        """Extend the step in flight: something else has the core of one of its engines."""
        for step in self._steps:
            step.first += seconds
        self._end += seconds
        for listener in self.listeners:
            listener()
