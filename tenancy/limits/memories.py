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


class Memory(Protocol):
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


class Window:
    """The last sixty seconds, and what is owed."""

    __slots__ = ("_owed", "_slots", "used")

    def __init__(self) -> None:
        self.used = 0.0
        self._slots: deque[tuple[int, float]] = deque()
        self._owed: deque[tuple[int, float]] = deque()
        """Debts by the slot that they were charged to, the oldest first."""

    @property
    def owed(self) -> float:
        """What of `used` the next windows still have to pay."""
        return sum(amount for _, amount in self._owed)

    def advance(self, now_s: float, room: float = inf) -> None:
        slots, oldest = self._slots, int((now_s - SPAN_S) // SLOT_S)
        while slots and slots[0][0] < oldest:
            slot, held = slots.popleft()
            self.used -= held
            if self._owed:
                self._carry_over(slot, room)
        if not slots:
            self.used = 0.0

    def add(self, amount: float, now_s: float, room: float = inf) -> int:
        self.used += amount
        slot, slots = int(now_s // SLOT_S), self._slots
        if slots and slots[-1][0] >= slot:
            slot, held = slots[-1]
            slots[-1] = (slot, held + amount)
        else:
            slots.append((slot, amount))
        if self.used > room:
            self._owe(amount, slot, room)
        return slot

    def take_back(self, amount: float, slot: int) -> None:
        slots = self._slots
        for at in range(len(slots) - 1, -1, -1):
            if slots[at][0] == slot:
                slots[at] = (slot, slots[at][1] - amount)
                self.used -= amount
                if self._owed:
                    self._pay(amount)
                return

    def frees_in_s(self, amount: float, now_s: float, room: float = inf) -> float:
        if amount <= 0:
            return 0.0
        if self._owed:
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
        """The same where something is owed: what is left when all else has gone is paid one window at a time."""
        owed, last = dict(self._owed), self._owed[-1][0]
        for slot, held in self._slots:
            amount -= held - min(held, owed.get(slot, 0.0))
            if amount <= 0:
                return _gone_in_s(slot, now_s)
        windows = ceil(amount / room * (1 - ROUNDING)) if room > 0 else inf
        return _gone_in_s(last, now_s) + windows * WINDOW_SLOTS * SLOT_S

    def _owe(self, amount: float, slot: int, room: float) -> None:
        """What has just been charged to a slot exceeds the room, at least in part."""
        excess = min(amount, self.used - room)
        if excess <= ROUNDING * room:
            return
        if self._owed and self._owed[-1][0] == slot:
            excess += self._owed.pop()[1]
        self._owed.append((slot, excess))

    def _pay(self, amount: float) -> None:
        """Room has come back: it is the newest debt's."""
        owed = self._owed
        while owed and amount > 0:
            slot, held = owed.pop()
            if held > amount:
                owed.append((slot, held - amount))
            amount -= held

    def _carry_over(self, gone: int, room: float) -> None:
        """A slot is forgotten: what was owed of it is charged to the slot at that moment."""
        owed, carried = self._owed, 0.0
        while owed and owed[0][0] <= gone:
            carried += owed.popleft()[1]
        if not carried:
            return
        slots, slot, at = self._slots, gone + WINDOW_SLOTS, len(self._slots)
        while at and slots[at - 1][0] > slot:
            at -= 1
        if at and slots[at - 1][0] == slot:
            slots[at - 1] = (slot, slots[at - 1][1] + carried)
        else:
            slots.insert(at, (slot, carried))
        self.used += carried
        excess = min(carried, self.used - room)
        if excess > ROUNDING * room:
            after = len(owed)
            while after and owed[after - 1][0] > slot:
                after -= 1
            owed.insert(after, (slot, excess))


def _gone_in_s(slot: int, now_s: float) -> float:
    return max(0.0, (slot + 1) * SLOT_S + SPAN_S - now_s)


USUAL_STAY_S = 5.0

STAY_MEMORY = 20
"""Requests."""


class Gauge:
    """What is held until it is given back. Nothing is owed: it is free when its request has ended."""

    __slots__ = ("_stay_s", "used")

    def __init__(self) -> None:
        self.used = 0.0
        self._stay_s = USUAL_STAY_S

    def advance(self, now_s: float, room: float = inf) -> None:
        """Time frees nothing."""

    def add(self, amount: float, now_s: float, room: float = inf) -> int:
        self.used += amount
        return int(now_s)

    def take_back(self, amount: float, slot: int) -> None:
        self.used -= amount

    def left_after(self, stay_s: float) -> None:
        """A request has ended: the mean tells when the next one will."""
        self._stay_s += (stay_s - self._stay_s) / STAY_MEMORY

    def frees_in_s(self, amount: float, now_s: float, room: float = inf) -> float:
        return 0.0 if amount <= 0 else self._stay_s * amount / max(1.0, self.used)


class Period:
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
