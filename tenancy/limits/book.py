"""What one account has used of each of its limits, and all accounts that anybody has asked for lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf

from msgspec import Struct

from tenancy.limits.memories import Gauge, Memory, Period, Window
from tenancy.limits.slices import Granted
from tenancy.limits.use import AMOUNT, Kind, Use, limits_of
from tenancy.quota import Account, Quota

ROUNDING = 1e-9
"""Money is added up in floats: what is over by less is not over."""


class Meter:
    """One limit of one account."""

    __slots__ = ("amount", "cap", "demand", "kind", "lent", "limit", "memory", "unmet")

    def __init__(self, kind: Kind, limit: float, memory: Memory) -> None:
        self.kind = kind
        self.amount = AMOUNT[kind]
        """How much of it a use takes."""
        self.limit = limit
        self.cap = limit
        """What may be used here. Less than the limit where several gateways share it."""
        self.memory = memory
        self.lent: Granted | None = None
        """What of it was granted last, where several gateways share it."""
        self.demand = 0.0
        """What was used here since somebody last looked; and what was asked for and not granted."""
        self.unmet = 0.0

    def __repr__(self) -> str:
        return f"<Meter of {self.kind}, {self.memory.used:g} of {self.cap:g}>"

    @property
    def remaining(self) -> float:
        """What is left of the limit, as far as is known here."""
        elsewhere = self.lent.elsewhere + self.lent.gone if self.lent is not None else 0.0
        return max(0.0, self.limit - self.memory.used - elsewhere)

    def has_room(self, amount: float) -> bool:
        return self.memory.used + amount <= self.cap * (1 + ROUNDING)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until there will be room for so much; infinite where there never will."""
        if amount > self.limit:
            return inf
        return self.memory.frees_in_s(self.memory.used + amount - self.cap, now_s)


class Lack(Struct, frozen=True):
    """One limit that has no room for a request."""

    path: str
    """Of the account."""
    kind: Kind
    limit: float
    amount: float
    """What the request needs of it."""
    wait_s: float
    """Until there will be room for it; infinite where the limit itself is smaller."""
    period_s: float = 60.0
    """How long the limit must last, where it is one of a stretch of time."""


Needs = Mapping[Kind, float]
"""What a request that finds no room needs of each limit."""


class Book:
    """One account."""

    __slots__ = ("meters", "open", "path", "quota")

    def __init__(self, account: Account) -> None:
        self.path = account.path
        self.quota = account.quota
        self.meters: dict[Kind, Meter] = {}
        self.open = 0
        """Reservations that have not ended."""
        self._set_limits(account.quota)

    def __repr__(self) -> str:
        return f"<Book of {self.path}, {self.open} open>"

    def take_quota(self, quota: Quota) -> bool:
        """Go by another quota from now on. What was used stays used. Returns whether it says anything else."""
        if quota == self.quota:
            return False
        self._set_limits(quota)
        self.quota = quota
        return True

    def _set_limits(self, quota: Quota) -> None:
        limits = limits_of(quota)
        for kind in set(self.meters) - set(limits):
            del self.meters[kind]
        for kind, limit in limits.items():
            meter = self.meters.get(kind)
            if meter is None or (kind is Kind.BUDGET and quota.budget_period_s != self.quota.budget_period_s):
                self.meters[kind] = Meter(kind, limit, _memory(kind, quota))
            elif meter.limit != limit:
                # What is shared is asked for; what is not is there.
                meter.cap = limit if meter.lent is None else min(meter.cap, limit)
                meter.limit = limit

    def advance(self, now_s: float) -> None:
        for meter in self.meters.values():
            meter.memory.advance(now_s)

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost with it."""
        return not self.open and not any(meter.memory.used for meter in self.meters.values())

    def lacks(self, more: Use, held: Use, now_s: float, *, under_load: bool) -> Iterator[Lack]:
        """The limits that have no room for what `more` takes beyond what is `held` already."""
        rests = self.quota.binds_only_under_load and not under_load
        for kind, meter in self.meters.items():
            amount = meter.amount(more) - meter.amount(held)
            if amount <= 0 or (rests and kind is not Kind.PARALLEL and kind is not Kind.BUDGET):
                continue
            meter.memory.advance(now_s)
            if not meter.has_room(amount):
                meter.unmet += amount
                period_s = self.quota.budget_period_s if kind is Kind.BUDGET else 60.0
                yield Lack(self.path, kind, meter.limit, amount, meter.wait_s(amount, now_s), period_s)


def _memory(kind: Kind, quota: Quota) -> Memory:
    if kind is Kind.PARALLEL:
        return Gauge()
    return Period(quota.budget_period_s) if kind is Kind.BUDGET else Window()


MOST_BOOKS = 50_000
"""Users come and go. Of accounts beyond so many, the one that was asked for longest ago is forgotten."""

LOOKED_AT = 4
"""Of the oldest books, whenever a new one is opened: those that are idle go."""


class Books:
    """All accounts, by path."""

    def __init__(
        self,
        *,
        most: int = MOST_BOOKS,
        opened: Callable[[Book], None] = lambda _: None,
        dropped: Callable[[Book], None] = lambda _: None,
    ) -> None:
        """`opened` and `dropped` are told of books that come or have other limits, and of those that go."""
        self._books: OrderedDict[str, Book] = OrderedDict()
        self._most = most
        self._opened = opened
        self._dropped = dropped

    def __len__(self) -> int:
        return len(self._books)

    def __iter__(self) -> Iterator[Book]:
        return iter(self._books.values())

    def of(self, accounts: Iterable[Account], now_s: float) -> list[Book]:
        """The books of some accounts."""
        before, books = len(self._books), [self._book(account) for account in accounts]
        if len(self._books) > before:
            self._make_room(books, now_s)
        return books

    def find(self, path: str) -> Book | None:
        return self._books.get(path)

    def _book(self, account: Account) -> Book:
        book = self._books.get(account.path)
        if book is None:
            book = self._books[account.path] = Book(account)
            self._opened(book)
        else:
            self._books.move_to_end(account.path)
            if book.quota is not account.quota and book.take_quota(account.quota):
                self._opened(book)
        return book

    def _make_room(self, wanted: Sequence[Book], now_s: float) -> None:
        """Forget the oldest of which nothing would be lost, or of which there are too many."""
        for book in [book for book, _ in zip(self._books.values(), range(LOOKED_AT), strict=False)]:
            book.advance(now_s)
            if book not in wanted and (book.is_idle or (len(self._books) > self._most and not book.open)):
                del self._books[book.path]
                self._dropped(book)
