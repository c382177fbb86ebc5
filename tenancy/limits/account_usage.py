"""What each account has used of each of its limits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Protocol

from msgspec import Struct

from tenancy.limits.counters import ROUNDING, Gauge, Memory, Period, Window
from tenancy.limits.leases import Granted
from tenancy.limits.usage import AMOUNT, Kind, Use, limits_of
from tenancy.tenants import Account, Quota

SLOWEST = 8.0
"""A debt is taken to be paid at least at this part of the limit."""


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
        """Used here since the last lease request; `unmet`: requested and not granted."""
        self.unmet = 0.0

    def __repr__(self) -> str:
        return f"<Meter of {self.kind}, {self.memory.used:g} of {self.cap:g}>"

    @property
    def remaining(self) -> float:
        """What is left of the limit, as far as is known here."""
        elsewhere = self.lent.elsewhere + self.lent.gone if self.lent is not None else 0.0
        return max(0.0, self.limit - self.memory.used - elsewhere)

    def take_limit(self, limit: float) -> None:
        """Go by another limit."""
        if self.lent is None:
            self.cap = limit
        elif limit < self.limit:
            # What others have used may fill all of the smaller limit: what was lent and not used is asked for anew.
            self.cap = min(self.cap, limit, self.memory.used)
        self.limit = limit

    def _shared_room(self, lent: Granted) -> float:
        """How much may be used here before anything is owed. What other gateways do not hold may still be lent."""
        return max(min(self.cap, self.limit), self.limit - lent.elsewhere - lent.gone)

    def advance(self, now_s: float) -> None:
        """Forget what is no longer used by then, but for debts."""
        lent = self.lent
        self.memory.advance(now_s, self.limit if lent is None else self._shared_room(lent))

    def charge(self, amount: float, now_s: float, *, binds: bool = True) -> int:
        """Use so much more; returns when, as `Memory` has it. What is used while a limit does not bind is not owed."""
        self.demand += amount
        lent = self.lent
        room = inf if not binds else self.limit if lent is None else self._shared_room(lent)
        return self.memory.add(amount, now_s, room)

    def frees_in_s(self, amount: float, now_s: float) -> float:
        """Seconds until so much of what is used will be free again, if nothing is added."""
        lent = self.lent
        # However little other gateways leave at this moment, debts are paid at some rate.
        room = self.limit if lent is None else max(self._shared_room(lent), self.limit / SLOWEST)
        return self.memory.frees_in_s(amount, now_s, room)

    def has_room(self, amount: float) -> bool:
        return self.memory.used + amount <= self.cap * (1 + ROUNDING)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until there will be room for so much; infinite where there never will."""
        if amount > self.limit:
            return inf
        return self.frees_in_s(self.memory.used + amount - self.cap, now_s)


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


class Holder(Protocol):
    """A request that holds something of an account."""

    def take_meter(self, book: Book, meter: Meter, now_s: float) -> None:
        """A limit has come: charge it with what the request holds already."""
        ...


class Book:
    """One account."""

    __slots__ = ("_holders", "_lifted", "always_binds", "meters", "path", "quota", "version")

    def __init__(self, path: str, quota: Quota) -> None:
        self.path = path
        self.quota = quota
        self.always_binds = not quota.binds_only_under_load
        """Whether all limits bind, also while no request waits for an engine."""
        self.meters: dict[Kind, Meter] = {}
        self.version = 0
        """Grows with each quota that says anything else."""
        self._holders: dict[Holder, None] = {}
        self._lifted: dict[Kind, Meter] = {}
        """Limits that no longer bind, with what was used of them: they may be put back."""
        self._set_limits(quota, 0.0)

    def __repr__(self) -> str:
        return f"<Book of {self.path}, {self.open} open>"

    @property
    def open(self) -> int:
        """Reservations that have not ended."""
        return len(self._holders)

    def hold(self, holder: Holder) -> None:
        """A reservation begins."""
        self._holders[holder] = None

    def let_go(self, holder: Holder) -> None:
        """A reservation has ended. Safe to call again."""
        self._holders.pop(holder, None)

    def take_quota(self, quota: Quota, now_s: float) -> bool:
        """Go by another quota from now on. What was used stays used, and requests under way are charged to limits that
        they did not begin with. Returns whether it says anything else.
        """
        if quota == self.quota:
            return False
        self._set_limits(quota, now_s)
        self.quota = quota
        self.always_binds = not quota.binds_only_under_load
        self.version += 1
        return True

    def _set_limits(self, quota: Quota, now_s: float) -> None:
        limits = limits_of(quota)
        for kind in set(self.meters) - set(limits):
            self._lifted[kind] = self.meters.pop(kind)
        has_other_period = quota.budget_period_s != self.quota.budget_period_s
        for kind, limit in limits.items():
            meter = self.meters.get(kind)
            if meter is not None and not (kind is Kind.BUDGET and has_other_period):
                meter.take_limit(limit)
                continue
            self.meters[kind] = meter = self._put_back(kind, limit) or Meter(kind, limit, _memory(kind, quota))
            for holder in self._holders:
                holder.take_meter(self, meter, now_s)

    def _put_back(self, kind: Kind, limit: float) -> Meter | None:
        """A limit that was lifted, as it would stand if it had not been; None where there is none of its kind."""
        meter = self._lifted.pop(kind, None)
        if meter is None:
            return None
        meter.limit = meter.cap = limit
        meter.lent, meter.demand, meter.unmet = None, 0.0, 0.0
        return meter

    def advance(self, now_s: float) -> None:
        for meter in (*self.meters.values(), *self._lifted.values()):
            meter.advance(now_s)

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost with it."""
        return not self.open and not any(meter.memory.used for meter in (*self.meters.values(), *self._lifted.values()))

    def binds(self, kind: Kind, *, under_load: bool) -> bool:
        """Whether a limit of this kind binds now. `under_load`: whether requests wait for engines."""
        return under_load or self.always_binds or kind is Kind.PARALLEL or kind is Kind.BUDGET

    def lacks(self, more: Use, held: Use, now_s: float, *, under_load: bool) -> Iterator[Lack]:
        """The limits that have no room for what `more` takes beyond what is `held` already."""
        for kind, meter in self.meters.items():
            amount = meter.amount(more) - meter.amount(held)
            if amount <= 0 or not (self.always_binds or self.binds(kind, under_load=under_load)):
                continue
            meter.advance(now_s)
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


QuotaOf = Callable[[str], Quota | None]
"""The quota in force of the account at a path; None where none is known: then it keeps the one it has."""


class Books:
    """All accounts, by path. Without `go_by` each goes by the quota that its callers bring."""

    def __init__(
        self,
        *,
        most: int = MOST_BOOKS,
        opened: Callable[[Book], None] = lambda _: None,
        dropped: Callable[[Book], None] = lambda _: None,
    ) -> None:
        """`opened` is called with accounts that are new or have other limits, `dropped` with evicted ones."""
        self._quota_of: QuotaOf | None = None
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
        before, books = len(self._books), [self._book(account, now_s) for account in accounts]
        if len(self._books) > before:
            self._make_room(books, now_s)
        return books

    def find(self, path: str) -> Book | None:
        return self._books.get(path)

    def go_by(self, quota_of: QuotaOf, now_s: float) -> None:
        """Put quotas in force, for all accounts there are and for those that come. From here on what callers bring of
        their own counts no more: they may have come under another policy.
        """
        self._quota_of = quota_of
        for book in self._books.values():
            quota = quota_of(book.path)
            if quota is not None and book.take_quota(quota, now_s):
                self._opened(book)

    def _book(self, account: Account, now_s: float) -> Book:
        book = self._books.get(account.path)
        if book is None:
            in_force = self._quota_of(account.path) if self._quota_of is not None else None
            book = self._books[account.path] = Book(account.path, account.quota if in_force is None else in_force)
            self._opened(book)
        else:
            self._books.move_to_end(account.path)
            if self._quota_of is None and book.quota is not account.quota and book.take_quota(account.quota, now_s):
                self._opened(book)
        return book

    def _make_room(self, wanted: Sequence[Book], now_s: float) -> None:
        """Forget the oldest of which nothing would be lost, or of which there are too many."""
        for book in [book for book, _ in zip(self._books.values(), range(LOOKED_AT), strict=False)]:
            book.advance(now_s)
            if book not in wanted and (book.is_idle or (len(self._books) > self._most and not book.open)):
                del self._books[book.path]
                self._dropped(book)
