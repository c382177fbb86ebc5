"""What each account has used of each of its limits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Protocol

from msgspec import Struct

from tenancy.limits.counters import ROUNDING, ConcurrencyCounter, PeriodCounter, SlidingWindowCounter, UsageCounter
from tenancy.limits.leases import LeaseGrant
from tenancy.limits.usage import AMOUNT, LimitKind, RequestUsage, limits_of
from tenancy.tenants import Account, Quota

MIN_PAYBACK_DIVISOR = 8.0
"""A debt is taken to be paid at least at this part of the limit."""


class LimitUsage:
    """One limit of one account."""

    __slots__ = ("amount", "cap", "counter", "demand", "kind", "lease", "limit", "unmet")

    def __init__(self, kind: LimitKind, limit: float, memory: UsageCounter) -> None:
        self.kind = kind
        self.amount = AMOUNT[kind]
        """How much of it a use takes."""
        self.limit = limit
        self.cap = limit
        """What may be used here. Less than the limit where several gateways share it."""
        self.counter = memory
        self.lease: LeaseGrant | None = None
        """What of it was granted last, where several gateways share it."""
        self.demand = 0.0
        """Used here since the last lease request; `unmet`: requested and not granted."""
        self.unmet = 0.0

    def __repr__(self) -> str:
        return f"<Meter of {self.kind}, {self.counter.used:g} of {self.cap:g}>"

    @property
    def remaining(self) -> float:
        """What is left of the limit, as far as is known here."""
        elsewhere = self.lease.elsewhere + self.lease.gone if self.lease is not None else 0.0
        return max(0.0, self.limit - self.counter.used - elsewhere)

    def change_limit(self, limit: float) -> None:
        """Go by another limit."""
        if self.lease is None:
            self.cap = limit
        elif limit < self.limit:
            # What others have used may fill all of the smaller limit: what was lent and not used is asked for anew.
            self.cap = min(self.cap, limit, self.counter.used)
        self.limit = limit

    def _shared_room(self, lent: LeaseGrant) -> float:
        """How much may be used here before anything is owed. What other gateways do not hold may still be lent."""
        return max(min(self.cap, self.limit), self.limit - lent.elsewhere - lent.gone)

    def advance(self, now_s: float) -> None:
        """Forget what is no longer used by then, but for debts."""
        lent = self.lease
        self.counter.advance(now_s, self.limit if lent is None else self._shared_room(lent))

    def charge(self, amount: float, now_s: float, *, binds: bool = True) -> int:
        """Use so much more; returns when, as `UsageCounter` has it. What is used while a limit does not bind is not
        owed.
        """
        self.demand += amount
        lent = self.lease
        room = inf if not binds else self.limit if lent is None else self._shared_room(lent)
        return self.counter.add(amount, now_s, room)

    def frees_in_s(self, amount: float, now_s: float) -> float:
        """Seconds until so much of what is used will be free again, if nothing is added."""
        lent = self.lease
        # However little other gateways leave at this moment, debts are paid at some rate.
        room = self.limit if lent is None else max(self._shared_room(lent), self.limit / MIN_PAYBACK_DIVISOR)
        return self.counter.frees_in_s(amount, now_s, room)

    def has_room(self, amount: float) -> bool:
        return self.counter.used + amount <= self.cap * (1 + ROUNDING)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until there will be room for so much; infinite where there never will."""
        if amount > self.limit:
            return inf
        return self.frees_in_s(self.counter.used + amount - self.cap, now_s)


class LimitExceeded(Struct, frozen=True):
    """One limit that has no room for a request."""

    path: str
    """Of the account."""
    kind: LimitKind
    limit: float
    amount: float
    """What the request needs of it."""
    wait_s: float
    """Until there will be room for it; infinite where the limit itself is smaller."""
    period_s: float = 60.0
    """How long the limit must last, where it is one of a stretch of time."""


LimitNeeds = Mapping[LimitKind, float]
"""What a request that finds no room needs of each limit."""


class ReservationHolder(Protocol):
    """A request that holds something of an account."""

    def add_limit(self, book: AccountUsage, meter: LimitUsage, now_s: float) -> None:
        """A limit has come: charge it with what the request holds already."""
        ...


class AccountUsage:
    """One account."""

    __slots__ = ("_holders", "_lifted", "always_binds", "limit_usages", "path", "quota", "version")

    def __init__(self, path: str, quota: Quota) -> None:
        self.path = path
        self.quota = quota
        self.always_binds = not quota.binds_only_under_load
        """Whether all limits bind, also while no request waits for an engine."""
        self.limit_usages: dict[LimitKind, LimitUsage] = {}
        self.version = 0
        """Grows with each quota that says anything else."""
        self._holders: dict[ReservationHolder, None] = {}
        self._lifted: dict[LimitKind, LimitUsage] = {}
        """Limits that no longer bind, with what was used of them: they may be put back."""
        self._set_limits(quota, 0.0)

    def __repr__(self) -> str:
        return f"<Book of {self.path}, {self.open} open>"

    @property
    def open(self) -> int:
        """Reservations that have not ended."""
        return len(self._holders)

    def hold(self, holder: ReservationHolder) -> None:
        """A reservation begins."""
        self._holders[holder] = None

    def release(self, holder: ReservationHolder) -> None:
        """A reservation has ended. Safe to call again."""
        self._holders.pop(holder, None)

    def change_quota(self, quota: Quota, now_s: float) -> bool:
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
        for kind in set(self.limit_usages) - set(limits):
            self._lifted[kind] = self.limit_usages.pop(kind)
        has_other_period = quota.budget_period_s != self.quota.budget_period_s
        for kind, limit in limits.items():
            meter = self.limit_usages.get(kind)
            if meter is not None and not (kind is LimitKind.BUDGET and has_other_period):
                meter.change_limit(limit)
                continue
            self.limit_usages[kind] = meter = self._put_back(kind, limit) or LimitUsage(
                kind, limit, _memory(kind, quota)
            )
            for holder in self._holders:
                holder.add_limit(self, meter, now_s)

    def _put_back(self, kind: LimitKind, limit: float) -> LimitUsage | None:
        """A limit that was lifted, as it would stand if it had not been; None where there is none of its kind."""
        meter = self._lifted.pop(kind, None)
        if meter is None:
            return None
        meter.limit = meter.cap = limit
        meter.lease, meter.demand, meter.unmet = None, 0.0, 0.0
        return meter

    def advance(self, now_s: float) -> None:
        for meter in (*self.limit_usages.values(), *self._lifted.values()):
            meter.advance(now_s)

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost with it."""
        return not self.open and not any(
            meter.counter.used for meter in (*self.limit_usages.values(), *self._lifted.values())
        )

    def binds(self, kind: LimitKind, *, under_load: bool) -> bool:
        """Whether a limit of this kind binds now. `under_load`: whether requests wait for engines."""
        return under_load or self.always_binds or kind is LimitKind.PARALLEL or kind is LimitKind.BUDGET

    def exceeded(
        self, more: RequestUsage, held: RequestUsage, now_s: float, *, under_load: bool
    ) -> Iterator[LimitExceeded]:
        """The limits that have no room for what `more` takes beyond what is `held` already."""
        for kind, meter in self.limit_usages.items():
            amount = meter.amount(more) - meter.amount(held)
            if amount <= 0 or not (self.always_binds or self.binds(kind, under_load=under_load)):
                continue
            meter.advance(now_s)
            if not meter.has_room(amount):
                meter.unmet += amount
                period_s = self.quota.budget_period_s if kind is LimitKind.BUDGET else 60.0
                yield LimitExceeded(self.path, kind, meter.limit, amount, meter.wait_s(amount, now_s), period_s)


def _memory(kind: LimitKind, quota: Quota) -> UsageCounter:
    if kind is LimitKind.PARALLEL:
        return ConcurrencyCounter()
    return PeriodCounter(quota.budget_period_s) if kind is LimitKind.BUDGET else SlidingWindowCounter()


MAX_ACCOUNTS = 50_000
"""Users come and go. Of accounts beyond so many, the one that was asked for longest ago is forgotten."""

EVICTION_CANDIDATES = 4
"""Of the oldest books, whenever a new one is opened: those that are idle go."""


QuotaOf = Callable[[str], Quota | None]
"""The quota in force of the account at a path; None where none is known: then it keeps the one it has."""


class UsageStore:
    """All accounts, by path. Without `go_by` each goes by the quota that its callers bring."""

    def __init__(
        self,
        *,
        most: int = MAX_ACCOUNTS,
        opened: Callable[[AccountUsage], None] = lambda _: None,
        dropped: Callable[[AccountUsage], None] = lambda _: None,
    ) -> None:
        """`opened` is called with accounts that are new or have other limits, `dropped` with evicted ones."""
        self._quota_of: QuotaOf | None = None
        self._books: OrderedDict[str, AccountUsage] = OrderedDict()
        self._most = most
        self._opened = opened
        self._dropped = dropped

    def __len__(self) -> int:
        return len(self._books)

    def __iter__(self) -> Iterator[AccountUsage]:
        return iter(self._books.values())

    def of(self, accounts: Iterable[Account], now_s: float) -> list[AccountUsage]:
        """The books of some accounts."""
        before, books = len(self._books), [self._book(account, now_s) for account in accounts]
        if len(self._books) > before:
            self._make_room(books, now_s)
        return books

    def find(self, path: str) -> AccountUsage | None:
        return self._books.get(path)

    def apply_quotas(self, quota_of: QuotaOf, now_s: float) -> None:
        """Put quotas in force, for all accounts there are and for those that come. From here on what callers bring of
        their own counts no more: they may have come under another policy.
        """
        self._quota_of = quota_of
        for book in self._books.values():
            quota = quota_of(book.path)
            if quota is not None and book.change_quota(quota, now_s):
                self._opened(book)

    def _book(self, account: Account, now_s: float) -> AccountUsage:
        book = self._books.get(account.path)
        if book is None:
            in_force = self._quota_of(account.path) if self._quota_of is not None else None
            book = self._books[account.path] = AccountUsage(
                account.path, account.quota if in_force is None else in_force
            )
            self._opened(book)
        else:
            self._books.move_to_end(account.path)
            if self._quota_of is None and book.quota is not account.quota and book.change_quota(account.quota, now_s):
                self._opened(book)
        return book

    def _make_room(self, wanted: Sequence[AccountUsage], now_s: float) -> None:
        """Forget the oldest of which nothing would be lost, or of which there are too many."""
        for book in [book for book, _ in zip(self._books.values(), range(EVICTION_CANDIDATES), strict=False)]:
            book.advance(now_s)
            if book not in wanted and (book.is_idle or (len(self._books) > self._most and not book.open)):
                del self._books[book.path]
                self._dropped(book)
