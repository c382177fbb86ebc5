"""How a limit remembers what was used: for sixty seconds, until it is given back, or until a period ends.

A window is exact in one direction: it keeps what was granted in slots of half a second, and a slot is forgotten only
when all of it is more than sixty seconds old. So what was granted in *any* sixty seconds, wherever they begin, is never
more than `used` was after the last grant in them; in return room comes back up to half a second late.

What is charged beyond the room that there is becomes a debt. A debt is not forgotten with its slot or its period: it is
charged again to the next one, and what exceeds the room there is a debt again. So whatever one request has taken, the
account pays for all of it, one window after the other.
"""

from __future__ import annotations

from collections import deque
from math import ceil, inf
from typing import Protocol

SPAN_S = 60.0

SLOT_S = 0.5
"""At most 121 slots are kept."""

WINDOW_SLOTS = int(SPAN_S / SLOT_S) + 1
"""A slot is forgotten when so many have begun after it."""

ROUNDING = 1e-9
"""Money is added up in floats: what is over by less is not over."""


class UsageCounter(Protocol):
    """What of a limit is used. `slot` says to which moment an amount belongs, `room` how much may be used in all."""

    used: float

    def advance(self, now_s: float, room: float = inf) -> None:
        """Forget what is no longer used by then, but for debts."""
        ...

    def add(self, amount: float, now_s: float, room: float = inf) -> int:
        """Use some more; returns the slot that it went to. What exceeds `room` is owed."""
        ...

    def take_back(self, amount: float, slot: int) -> None:
        """Some of what went to a slot was not used after all."""
        ...

    def frees_in_s(self, amount: float, now_s: float, room: float = inf) -> float:
        """Seconds until so much of what is used will be free again, if nothing is added."""
        ...


class SlidingWindowCounter:
    """The last sixty seconds, and what is owed: it takes the room of what is forgotten, as far as there is any."""

    __slots__ = ("_slots", "owed", "used")

    def __init__(self) -> None:
        self.used = 0.0
        self.owed = 0.0
        """What of `used` stands in no slot yet."""
        self._slots: deque[tuple[int, float]] = deque()

    def advance(self, now_s: float, room: float = inf) -> None:
        slots, oldest = self._slots, int((now_s - SPAN_S) // SLOT_S)
        while slots and slots[0][0] < oldest:
            slot, held = slots.popleft()
            self.used -= held
            if self.owed:
                self._pay(slot + WINDOW_SLOTS, room)
        if self.owed:
            self._pay(int(now_s // SLOT_S), room)
        elif not slots:
            self.used = 0.0

    def add(self, amount: float, now_s: float, room: float = inf) -> int:
        slot = int(now_s // SLOT_S)
        if self._slots and self._slots[-1][0] >= slot:
            slot = self._slots[-1][0]
        excess = min(amount, self.used + amount - room - self.owed)
        self.used += amount
        if excess > ROUNDING * room:
            self.owed += excess
            amount -= excess
        self._put(slot, amount)
        return slot

    def take_back(self, amount: float, slot: int) -> None:
        slots = self._slots
        at = next((at for at in range(len(slots) - 1, -1, -1) if slots[at][0] == slot), None)
        if at is None:
            return
        self.used -= amount
        if self.owed:
            paid = min(self.owed, amount)
            self.owed -= paid
            amount -= paid
        # Of what it held in this slot some may have been owed, and stand in a later one by now.
        for place in (at, *range(len(slots) - 1, -1, -1)):
            taken = min(amount, slots[place][1])
            slots[place] = (slots[place][0], slots[place][1] - taken)
            amount -= taken
            if amount <= 0:
                return

    def frees_in_s(self, amount: float, now_s: float, room: float = inf) -> float:
        if amount <= 0:
            return 0.0
        if self.owed:
            return self._frees_in_s(amount, now_s, room)
        if amount == self.used and self._slots:
            # All of it, as every answer's headers say, goes with the newest: there is no need to add up.
            return _gone_in_s(self._slots[-1][0], now_s)
        for slot, held in self._slots:
            amount -= held
            if amount <= 0:
                return _gone_in_s(slot, now_s)
        return SPAN_S

    def _frees_in_s(self, amount: float, now_s: float, room: float) -> float:
        """The same where something is owed: played through, but for windows that are all alike."""
        if room <= 0:
            return inf
        slots, owed, placed = deque(self._slots), self.owed, self.used - self.owed
        alike = max(0, int(min(amount - placed, owed) // room) - 1)
        amount, owed, later_s = amount - alike * room, owed - alike * room, alike * WINDOW_SLOTS * SLOT_S
        while slots:
            slot, held = slots.popleft()
            amount, placed = amount - held, placed - held
            if amount <= ROUNDING * room:
                return _gone_in_s(slot, now_s) + later_s
            moved = min(owed, room - placed)
            if moved > 0:
                owed, placed = owed - moved, placed + moved
                slots.append((slot + WINDOW_SLOTS, moved))
        return later_s + SPAN_S

    def _put(self, slot: int, amount: float) -> None:
        slots, at = self._slots, len(self._slots)
        while at and slots[at - 1][0] > slot:
            at -= 1
        if at and slots[at - 1][0] == slot:
            slots[at - 1] = (slot, slots[at - 1][1] + amount)
        else:
            slots.insert(at, (slot, amount))

    def _pay(self, slot: int, room: float) -> None:
        """What is owed takes the room that there is."""
        paid = min(self.owed, room - (self.used - self.owed))
        if paid > 0:
            self.owed -= paid
            self._put(slot, paid)


def _gone_in_s(slot: int, now_s: float) -> float:
    return max(0.0, (slot + 1) * SLOT_S + SPAN_S - now_s)


DEFAULT_DURATION_S = 5.0

DURATION_MEMORY = 20
"""Requests."""


class ConcurrencyCounter:
    """What is held until it is given back. Nothing is owed: it is free when its request has ended."""

    __slots__ = ("_stay_s", "used")

    def __init__(self) -> None:
        self.used = 0.0
        self._stay_s = DEFAULT_DURATION_S

    def advance(self, now_s: float, room: float = inf) -> None:
        """Time frees nothing."""

    def add(self, amount: float, now_s: float, room: float = inf) -> int:
        self.used += amount
        return int(now_s)

    def take_back(self, amount: float, slot: int) -> None:
        self.used -= amount

    def left_after(self, stay_s: float) -> None:
        """A request has ended: the mean tells when the next one will."""
        self._stay_s += (stay_s - self._stay_s) / DURATION_MEMORY

    def frees_in_s(self, amount: float, now_s: float, room: float = inf) -> float:
        return 0.0 if amount <= 0 else self._stay_s * amount / max(1.0, self.used)


class PeriodCounter:
    """A stretch of time, counted from the epoch: days end at midnight UTC. A debt begins the next one."""

    __slots__ = ("length_s", "number", "owed", "used")

    def __init__(self, length_s: float) -> None:
        self.length_s = length_s
        self.number = 0
        self.used = 0.0
        self.owed = 0.0
        """What of `used` the next periods have to pay."""

    def advance(self, now_s: float, room: float = inf) -> None:
        number = int(now_s // self.length_s)
        if number <= self.number:
            return
        if self.owed:
            # Each period that has passed unused has paid as much as there is room in one.
            self.owed = max(0.0, self.owed - (number - self.number - 1) * room)
        self.number, self.used = number, self.owed
        self.owed = max(0.0, self.used - room)

    def add(self, amount: float, now_s: float, room: float = inf) -> int:
        self.advance(now_s, room)
        self.used += amount
        if self.used > room * (1 + ROUNDING):
            self.owed += min(amount, self.used - room)
        return self.number

    def take_back(self, amount: float, slot: int) -> None:
        if slot == self.number:
            self.used = max(0.0, self.used - amount)
            self.owed = max(0.0, self.owed - amount)

    def frees_in_s(self, amount: float, now_s: float, room: float = inf) -> float:
        if amount <= 0:
            return 0.0
        ends_in_s, later = (self.number + 1) * self.length_s - now_s, amount - (self.used - self.owed)
        if not self.owed or later <= 0:
            return ends_in_s
        return ends_in_s + (ceil(later / room * (1 - ROUNDING)) if room > 0 else inf) * self.length_s
