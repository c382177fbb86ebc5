"""What one request holds of the accounts that it draws on: all of what it needs, or nothing.

A reservation says what the request is expected to take; more is taken while it streams (`top_up`); in the end it is
put right to what was really used (`settle`), and ended (`close`). Whatever the order, what the accounts are charged is
what was said last, and after the end nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tenancy.limits.book import Book, Lack, Meter
from tenancy.limits.memories import Gauge
from tenancy.limits.use import NOTHING, Kind, Use


def reserve(
    books: Sequence[Book], expected: Use, now_s: float, *, under_load: bool = True
) -> Reservation | tuple[Lack, ...]:
    """Take what a request is expected to use from all accounts, or, where a limit has no room, say which, and nothing.

    `under_load`: whether others wait, for limits that bind only then.
    """
    lacks = _lacks(books, expected, NOTHING, now_s, under_load=under_load)
    return lacks or Reservation(books, expected, now_s)


def _lacks(books: Sequence[Book], more: Use, held: Use, now_s: float, *, under_load: bool) -> tuple[Lack, ...]:
    return tuple(lack for book in books for lack in book.lacks(more, held, now_s, under_load=under_load))


class Reservation:
    """Made by `reserve`."""

    __slots__ = ("_began_s", "_books", "_grants", "held", "is_open")

    def __init__(self, books: Sequence[Book], expected: Use, now_s: float) -> None:
        self.held = expected
        """What the accounts are charged with."""
        self.is_open = True
        self._books = books
        self._began_s = now_s
        self._grants = [_Grant(meter) for book in books for meter in book.meters.values()]
        for book in books:
            book.open += 1
        self._charge(expected, now_s)

    def __repr__(self) -> str:
        return f"<Reservation of {self.held}{'' if self.is_open else ', closed'}>"

    @property
    def books(self) -> Sequence[Book]:
        return self._books

    def top_up(self, output_tokens: int, now_s: float, *, under_load: bool = True) -> tuple[Lack, ...]:
        """Take room for so many more tokens of output; where a limit has none, say which, and take nothing."""
        if not self.is_open:
            return ()
        more = replace(self.held, output_tokens=self.held.output_tokens + output_tokens)
        lacks = _lacks(self._books, more, self.held, now_s, under_load=under_load)
        if not lacks:
            self._charge(more, now_s)
        return lacks

    def settle(self, used: Use, now_s: float) -> None:
        """What the request has really taken: the rest is given back, what is missing is charged."""
        if self.is_open:
            self._charge(used, now_s)

    def close(self, now_s: float) -> None:
        """The request has ended. Safe to call again."""
        if not self.is_open:
            return
        self.is_open = False
        for grant in self._grants:
            grant.end(now_s - self._began_s)
        for book in self._books:
            book.open -= 1

    def _charge(self, used: Use, now_s: float) -> None:
        self.held = used
        for grant in self._grants:
            total = grant.meter.amount(used)
            if total != grant.total:
                grant.put(total, now_s)


class _Grant:
    """What a reservation holds of one limit: amounts by when they were granted, the newest last."""

    __slots__ = ("_amounts", "meter", "total")

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._amounts: list[tuple[int, float]] = []
        self.total = 0.0

    def put(self, total: float, now_s: float) -> None:
        """Hold so much in all."""
        more, meter = total - self.total, self.meter
        self.total = total
        if more > 0:
            meter.demand += more
            self._amounts.append((meter.memory.add(more, now_s), more))
        elif more < 0:
            self._take_back(-more)

    def _take_back(self, less: float) -> None:
        """Of what was granted last first."""
        while less > 0 and self._amounts:
            slot, amount = self._amounts.pop()
            taken = min(amount, less)
            self.meter.memory.take_back(taken, slot)
            if taken < amount:
                self._amounts.append((slot, amount - taken))
            less -= taken

    def end(self, stay_s: float) -> None:
        memory = self.meter.memory
        if self.meter.kind is Kind.PARALLEL and isinstance(memory, Gauge):
            memory.left_after(stay_s)
            self.put(0.0, 0.0)
