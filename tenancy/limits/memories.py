"""How a limit remembers what was used: for sixty seconds, until it is given back, or until a period ends.

A window is exact in one direction: it keeps what was granted in slots of half a second, and a slot is forgotten only
when all of it is more than sixty seconds old. So what was granted in *any* sixty seconds, wherever they begin, is never
more than `used` was after the last grant in them; in return room comes back up to half a second late.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

SPAN_S = 60.0

SLOT_S = 0.5
"""At most 121 slots are kept."""


class Memory(Protocol):
    """What of a limit is used. `slot` says to which moment an amount belongs."""

    used: float

    def advance(self, now_s: float) -> None:
        """Forget what is no longer used by then."""
        ...

    def add(self, amount: float, now_s: float) -> int:
        """Use some more; returns the slot that it went to."""
        ...

    def take_back(self, amount: float, slot: int) -> None:
        """Some of what went to a slot was not used after all."""
        ...

    def frees_in_s(self, amount: float, now_s: float) -> float:
        """Seconds until so much of what is used will be free again, if nothing is added."""
        ...


class Window:
    """The last sixty seconds."""

    __slots__ = ("_slots", "used")

    def __init__(self) -> None:
        self.used = 0.0
        self._slots: deque[tuple[int, float]] = deque()

    def advance(self, now_s: float) -> None:
        slots, oldest = self._slots, int((now_s - SPAN_S) // SLOT_S)
        while slots and slots[0][0] < oldest:
            self.used -= slots.popleft()[1]
        if not slots:
            self.used = 0.0

    def add(self, amount: float, now_s: float) -> int:
        self.used += amount
        slot, slots = int(now_s // SLOT_S), self._slots
        if slots and slots[-1][0] >= slot:
            slot, held = slots[-1]
            slots[-1] = (slot, held + amount)
        else:
            slots.append((slot, amount))
        return slot

    def take_back(self, amount: float, slot: int) -> None:
        slots = self._slots
        for at in range(len(slots) - 1, -1, -1):
            if slots[at][0] == slot:
                slots[at] = (slot, slots[at][1] - amount)
                self.used -= amount
                return

    def frees_in_s(self, amount: float, now_s: float) -> float:
        if amount <= 0:
            return 0.0
        if amount == self.used and self._slots:
            # All of it, as every answer's headers say, goes with the newest: there is no need to add up.
            return _gone_in_s(self._slots[-1][0], now_s)
        for slot, held in self._slots:
            amount -= held
            if amount <= 0:
                return _gone_in_s(slot, now_s)
        return SPAN_S


def _gone_in_s(slot: int, now_s: float) -> float:
    return max(0.0, (slot + 1) * SLOT_S + SPAN_S - now_s)


USUAL_STAY_S = 5.0

STAY_MEMORY = 20
"""Requests."""


class Gauge:
    """What is held until it is given back."""

    __slots__ = ("_stay_s", "used")

    def __init__(self) -> None:
        self.used = 0.0
        self._stay_s = USUAL_STAY_S

    def advance(self, now_s: float) -> None:
        """Time frees nothing."""

    def add(self, amount: float, now_s: float) -> int:
        self.used += amount
        return int(now_s)

    def take_back(self, amount: float, slot: int) -> None:
        self.used -= amount

    def left_after(self, stay_s: float) -> None:
        """A request has ended: the mean tells when the next one will."""
        self._stay_s += (stay_s - self._stay_s) / STAY_MEMORY

    def frees_in_s(self, amount: float, now_s: float) -> float:
        return 0.0 if amount <= 0 else self._stay_s * amount / max(1.0, self.used)


class Period:
    """A stretch of time, counted from the epoch: days end at midnight UTC."""

    __slots__ = ("length_s", "number", "used")

    def __init__(self, length_s: float) -> None:
        self.length_s = length_s
        self.number = 0
        self.used = 0.0

    def advance(self, now_s: float) -> None:
        number = int(now_s // self.length_s)
        if number > self.number:
            self.number, self.used = number, 0.0

    def add(self, amount: float, now_s: float) -> int:
        self.advance(now_s)
        self.used += amount
        return self.number

    def take_back(self, amount: float, slot: int) -> None:
        if slot == self.number:
            self.used = max(0.0, self.used - amount)

    def frees_in_s(self, amount: float, now_s: float) -> float:
        return (self.number + 1) * self.length_s - now_s if amount > 0 else 0.0
