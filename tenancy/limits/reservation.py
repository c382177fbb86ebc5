"""What one request holds of the accounts that it draws on: all of what it needs, or nothing.

A reservation says what the request is expected to take; more is taken while it streams (`top_up`); in the end it is
put right to what was really used (`settle`), and ended (`close`). Whatever the order, what the accounts are charged is
what was said last, and after the end nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tenancy.limits.account_usage import AccountUsage, LimitExceeded, LimitUsage
from tenancy.limits.counters import ConcurrencyCounter
from tenancy.limits.usage import NO_USAGE, LimitKind, RequestUsage


def reserve(
    books: Sequence[AccountUsage], expected: RequestUsage, now_s: float, *, under_load: bool = True
) -> Reservation | tuple[LimitExceeded, ...]:
    """Take what a request is expected to use from all accounts, or, where a limit has no room, say which, and nothing.

    `under_load`: whether others wait, for limits that bind only then.
    """
    lacks = _lacks(books, expected, NO_USAGE, now_s, under_load=under_load)
    return lacks or Reservation(books, expected, now_s, under_load=under_load)


def _lacks(
    books: Sequence[AccountUsage], more: RequestUsage, held: RequestUsage, now_s: float, *, under_load: bool
) -> tuple[LimitExceeded, ...]:
    return tuple(lack for book in books for lack in book.exceeded(more, held, now_s, under_load=under_load))


class Reservation:
    """Made by `reserve`."""

    __slots__ = ("_began_s", "_books", "_grants", "held", "is_open")

    def __init__(
        self, books: Sequence[AccountUsage], expected: RequestUsage, now_s: float, *, under_load: bool = True
    ) -> None:
        self.held = expected
        """What the accounts are charged with."""
        self.is_open = True
        self._books = books
        self._began_s = now_s
        self._grants = [_Grant(book, meter) for book in books for meter in book.limit_usages.values()]
        for book in books:
            book.hold(self)
        self._charge(expected, now_s, under_load=under_load)

    def __repr__(self) -> str:
        return f"<Reservation of {self.held}{'' if self.is_open else ', closed'}>"

    @property
    def accounts(self) -> Sequence[AccountUsage]:
        return self._books

    @property
    def version(self) -> int:
        """Changes when the limits of one of its accounts do."""
        return sum([book.version for book in self._books])

    def add_limit(self, book: AccountUsage, meter: LimitUsage, now_s: float) -> None:
        """One of its accounts has another limit from now on: it is charged with what is held."""
        if all(grant.meter is not meter for grant in self._grants):
            grant = _Grant(book, meter)
            self._grants.append(grant)
            # It was granted before there was this limit: that is not owed.
            grant.put(meter.amount(self.held), now_s, binds=False)

    def top_up(self, output_tokens: int, now_s: float, *, under_load: bool = True) -> tuple[LimitExceeded, ...]:
        """Take room for so many more tokens of output; where a limit has none, say which, and take nothing."""
        if not self.is_open:
            return ()
        more = replace(self.held, output_tokens=self.held.output_tokens + output_tokens)
        lacks = _lacks(self._books, more, self.held, now_s, under_load=under_load)
        if not lacks:
            self._charge(more, now_s, under_load=under_load)
        return lacks

    def shrink(self, output_tokens: int, now_s: float) -> None:
        """Give back what is held beyond so many tokens of output."""
        if self.is_open and output_tokens < self.held.output_tokens:
            self._charge(replace(self.held, output_tokens=output_tokens), now_s, under_load=True)

    def settle(self, used: RequestUsage, now_s: float, *, under_load: bool = True) -> None:
        """What the request has really taken: the rest is given back, what is missing is charged, and owed where it is
        beyond a limit.
        """
        if self.is_open:
            self._charge(used, now_s, under_load=under_load)

    def close(self, now_s: float) -> None:
        """The request has ended. Safe to call again."""
        if not self.is_open:
            return
        self.is_open = False
        for grant in self._grants:
            grant.end(now_s - self._began_s)
        for book in self._books:
            book.release(self)

    def _charge(self, used: RequestUsage, now_s: float, *, under_load: bool) -> None:
        self.held = used
        for grant in self._grants:
            total = grant.meter.amount(used)
            if total != grant.total:
                book = grant.book
                grant.put(total, now_s, binds=book.always_binds or book.binds(grant.meter.kind, under_load=under_load))


class _Grant:
    """What a reservation holds of one limit: amounts by when they were granted, the newest last."""

    __slots__ = ("_amounts", "book", "meter", "total")

    def __init__(self, book: AccountUsage, meter: LimitUsage) -> None:
        self.book = book
        self.meter = meter
        self._amounts: list[tuple[int, float]] = []
        self.total = 0.0

    def put(self, total: float, now_s: float, *, binds: bool = True) -> None:
        """Hold so much in all."""
        more = total - self.total
        self.total = total
        if more > 0:
            self._amounts.append((self.meter.charge(more, now_s, binds=binds), more))
        elif more < 0:
            self._take_back(-more)

    def _take_back(self, less: float) -> None:
        """Of what was granted last first."""
        while less > 0 and self._amounts:
            slot, amount = self._amounts.pop()
            taken = min(amount, less)
            self.meter.counter.take_back(taken, slot)
            if taken < amount:
                self._amounts.append((slot, amount - taken))
            less -= taken

    def end(self, stay_s: float) -> None:
        memory = self.meter.counter
        if self.meter.kind is LimitKind.PARALLEL and isinstance(memory, ConcurrencyCounter):
            memory.left_after(stay_s)
            self.put(0.0, 0.0)
