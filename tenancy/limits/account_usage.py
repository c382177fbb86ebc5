"""Usage of each account by limit, and what the reservations of requests hold.

A reservation charges every account with the expected usage of a request, or none of them. It grows while the request
streams (`top_up`), is corrected to the actual usage at the end (`settle`), and is closed (`close`). In whatever order
these are called, the accounts are charged with the last amount, and nothing changes after the end.

A limit counts what was used for sixty seconds, until it is given back, or until a period ends. A window is exact in one
direction: it keeps what was granted in slots of half a second, and a slot is forgotten only when all of it is more than
sixty seconds old. So what was granted in *any* sixty seconds is never more than `used` after the last grant in
them; in return room is free again up to half a second late.

A charge beyond the available room becomes a debt. A debt is not forgotten with its slot or its period: it is
charged again to the next one, and what exceeds the room there is a debt again. So an
account pays for all usage of a request, one window after the other.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil, inf
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from tenancy.limits.leases import LeaseGrant
from tenancy.limits.usage import AMOUNT, NO_USAGE, LimitKind, RequestUsage, limits_of
from tenancy.tenants import Account, Quota

SPAN_S = 60.0

SLOT_S = 0.5
"""At most 121 slots are kept."""

WINDOW_SLOTS = int(SPAN_S / SLOT_S) + 1
"""A slot is dropped once this many later ones have started."""

ROUNDING = 1e-9
"""Money is added up in floats: what is over by less is not over."""


class UsageCounter(Protocol):
    """Usage of one limit. `slot` is the moment to which an amount belongs, `room` the maximum usage."""

    used: float

    def advance(self, now_s: float, room: float = inf) -> None:
        """Remove what has expired by then, except debts."""
        ...

    def add(self, amount: float, now_s: float, room: float = inf) -> int:
        """Charge an amount and return its slot. What exceeds `room` becomes a debt."""
        ...

    def take_back(self, amount: float, slot: int) -> None:
        """Give back part of what was charged to a slot."""
        ...

    def frees_in_s(self, amount: float, now_s: float, room: float = inf) -> float:
        """Return the seconds until this much usage has expired, if nothing is charged meanwhile."""
        ...


class SlidingWindowCounter:
    """The last sixty seconds, and what is owed: it takes the room of what is forgotten, as far as there is any."""

    __slots__ = ("_slots", "owed", "used")

    def __init__(self) -> None:
        self.used = 0.0
        self.owed = 0.0
        """The part of `used` that is in no slot yet."""
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
        slots, slot, held = self._slots, int(now_s // SLOT_S), 0.0
        if slots and slots[-1][0] >= slot:
            slot, held = slots.pop()
        excess = min(amount, self.used + amount - room - self.owed)
        self.used += amount
        if excess > ROUNDING * room:
            self.owed += excess
            amount -= excess
        slots.append((slot, held + amount))
        return slot

    def take_back(self, amount: float, slot: int) -> None:
        slots = self._slots
        if slots and not self.owed and slots[-1][0] == slot and slots[-1][1] >= amount:
            # Nearly always: a short request gives back what it has just taken.
            self.used -= amount
            slots[-1] = (slot, slots[-1][1] - amount)
            return
        at = next((at for at in range(len(slots) - 1, -1, -1) if slots[at][0] == slot), None)
        if at is None:
            return
        self.used -= amount
        if self.owed:
            paid = min(self.owed, amount)
            self.owed -= paid
            amount -= paid
        # Debt of this slot may have been moved to a later one by now.
        for position in (at, *range(len(slots) - 1, -1, -1)):
            taken = min(amount, slots[position][1])
            slots[position] = (slots[position][0], slots[position][1] - taken)
            amount -= taken
            if amount <= 0:
                return

    def frees_in_s(self, amount: float, now_s: float, room: float = inf) -> float:
        if amount <= 0:
            return 0.0
        if self.owed:
            return self._frees_in_s(amount, now_s, room)
        if amount == self.used and self._slots:
            # All of it, as for the headers of every response: it expires with the newest slot.
            return max(0.0, (self._slots[-1][0] + 1) * SLOT_S + SPAN_S - now_s)
        for slot, held in self._slots:
            amount -= held
            if amount <= 0:
                return _gone_in_s(slot, now_s)
        return SPAN_S

    def _frees_in_s(self, amount: float, now_s: float, room: float) -> float:
        """Return the same with debt: simulated slot by slot, except when all windows are equal."""
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
        """Do nothing: this usage does not expire."""

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
        """The part of `used` that later periods have to pay."""

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


MIN_PAYBACK_DIVISOR = 8.0
"""A debt is taken to be paid at least at this part of the limit."""


class LimitUsage:
    """A limit of an account."""

    __slots__ = ("advanced_s", "amount", "cap", "counter", "demand", "kind", "lease", "limit", "unmet")

    def __init__(self, kind: LimitKind, limit: float, memory: UsageCounter) -> None:
        self.kind = kind
        self.amount = AMOUNT[kind]
        """Return how much of it a usage takes."""
        self.limit = limit
        self.cap = limit
        """Usage allowed on this gateway: less than the limit where several gateways share it."""
        self.counter = memory
        self.advanced_s = -inf
        """When expired usage was last removed."""
        self.lease: LeaseGrant | None = None
        """The part of it that was granted last, where several gateways share it."""
        self.demand = 0.0
        """Used here since the last lease request; `unmet`: requested and not granted."""
        self.unmet = 0.0

    def __repr__(self) -> str:
        return f"<LimitUsage of {self.kind}, {self.counter.used:g} of {self.cap:g}>"

    @property
    def remaining(self) -> float:
        """Return what is left of the limit, as far as this gateway knows."""
        elsewhere = self.lease.elsewhere + self.lease.gone if self.lease is not None else 0.0
        return max(0.0, self.limit - self.counter.used - elsewhere)

    def change_limit(self, limit: float) -> None:
        """Apply another limit."""
        if self.lease is None:
            self.cap = limit
        elif limit < self.limit:
            # What others have used may fill all of the smaller limit: unused leases are requested again.
            self.cap = min(self.cap, limit, self.counter.used)
        self.limit = limit

    def shared_room(self, lent: LeaseGrant) -> float:
        """Return how much may be used here before a debt begins. What other gateways do not hold may still be lent."""
        return max(min(self.cap, self.limit), self.limit - lent.elsewhere - lent.gone)

    def advance(self, now_s: float) -> None:
        """Remove what has expired by then, except debts."""
        if now_s != self.advanced_s:
            self.advanced_s = now_s
            self.counter.advance(now_s, self.limit if self.lease is None else self.shared_room(self.lease))

    def frees_in_s(self, amount: float, now_s: float) -> float:
        """Return the seconds until this much usage has expired, if nothing is charged meanwhile."""
        lent = self.lease
        # However little other gateways leave at this moment, debts are paid at some rate.
        room = self.limit if lent is None else max(self.shared_room(lent), self.limit / MIN_PAYBACK_DIVISOR)
        return self.counter.frees_in_s(amount, now_s, room)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Return the seconds until there is room for `amount`; infinite if there never will be."""
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
        """Increases with each changed quota."""
        self._holders: dict[Reservation, None] = {}
        self._lifted: dict[LimitKind, LimitUsage] = {}
        """Removed limits with their usage: they may be set again."""
        self._set_limits(quota, 0.0)

    def __repr__(self) -> str:
        return f"<AccountUsage of {self.path}, {self.open} open>"

    @property
    def open(self) -> int:
        """Reservations that have not ended."""
        return len(self._holders)

    def hold(self, holder: Reservation) -> None:
        """Count a reservation that begins."""
        self._holders[holder] = None

    def release(self, holder: Reservation) -> None:
        """Count a reservation that has ended. Idempotent."""
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
        """Restore a limit that was lifted, as if it had not been; None if there is no limit of its kind."""
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
        """Return whether it can be removed without losing usage."""
        return not self.open and not any(
            meter.counter.used for meter in (*self.limit_usages.values(), *self._lifted.values())
        )

    def binds(self, kind: LimitKind, *, under_load: bool) -> bool:
        """Whether a limit of this kind binds now. `under_load`: whether requests wait for engines."""
        return under_load or self.always_binds or kind is LimitKind.PARALLEL or kind is LimitKind.BUDGET


def _memory(kind: LimitKind, quota: Quota) -> UsageCounter:
    if kind is LimitKind.PARALLEL:
        return ConcurrencyCounter()
    return PeriodCounter(quota.budget_period_s) if kind is LimitKind.BUDGET else SlidingWindowCounter()


MAX_ACCOUNTS = 50_000
"""Users come and go. Above this number, the account that was requested longest ago is dropped."""

EVICTION_CANDIDATES = 4
"""Of the oldest books, whenever a new one is opened: those that are idle go."""


QuotaOf = Callable[[str], Quota | None]
"""Returns the quota of the account at a path; None where none is known: the account then keeps its own."""


class UsageStore:
    """All accounts, by path. Until `apply_quotas` each has the quota that its callers bring."""

    def __init__(
        self,
        *,
        max_accounts: int = MAX_ACCOUNTS,
        opened: Callable[[AccountUsage], None] = lambda _: None,
        dropped: Callable[[AccountUsage], None] = lambda _: None,
    ) -> None:
        """`opened` is called with accounts that are new or have other limits, `dropped` with evicted ones."""
        self._quota_of: QuotaOf | None = None
        self._books: OrderedDict[str, AccountUsage] = OrderedDict()
        self._of_users: OrderedDict[str, AccountUsage] = OrderedDict()
        """Those of them that are of single users."""
        self._max_accounts = max_accounts
        self._opened = opened
        self._dropped = dropped

    def __len__(self) -> int:
        return len(self._books)

    def __iter__(self) -> Iterator[AccountUsage]:
        return iter(self._books.values())

    def of(self, accounts: Iterable[Account], now_s: float) -> list[AccountUsage]:
        """Return the usage of some accounts."""
        before, books = len(self._books), [self._book(account, now_s) for account in accounts]
        if len(self._books) > before:
            self._make_room(books, now_s)
        return books

    def find(self, path: str) -> AccountUsage | None:
        return self._books.get(path)

    def apply_quotas(self, quota_of: QuotaOf, now_s: float) -> None:
        """Apply quotas to all accounts, present and future. Quotas that callers bring are ignored from then on, because
        they may come from an earlier policy.
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
            if _is_of_user(account.path):
                self._of_users[account.path] = book
            self._opened(book)
        else:
            self._books.move_to_end(account.path)
            if account.path in self._of_users:
                self._of_users.move_to_end(account.path)
            if self._quota_of is None and book.quota is not account.quota and book.change_quota(account.quota, now_s):
                self._opened(book)
        return book

    def _make_room(self, wanted: Sequence[AccountUsage], now_s: float) -> None:
        """Remove the oldest accounts that are idle, or that exceed the maximum number: those of users first. There may
        be any number of them, and a tenant that names ever new ones must not have the budgets of others forgotten.
        """
        for books in (self._of_users, self._books):
            for book in [book for book, _ in zip(books.values(), range(EVICTION_CANDIDATES), strict=False)]:
                book.advance(now_s)
                if book not in wanted and (book.is_idle or (len(self._books) > self._max_accounts and not book.open)):
                    del self._books[book.path]
                    self._of_users.pop(book.path, None)
                    self._dropped(book)


def _is_of_user(path: str) -> bool:
    return path.partition("/")[2].startswith("user/")


def reserve(
    books: Sequence[AccountUsage], expected: RequestUsage, now_s: float, *, under_load: bool = True
) -> Reservation | tuple[LimitExceeded, ...]:
    """Take what a request is expected to use from all accounts, or, where a limit has no room, say which, and nothing.

    `under_load`: whether others wait, for limits that bind only then.
    """
    lacks = _exceeded(books, expected, NO_USAGE, now_s, under_load=under_load)
    return tuple(lacks) if lacks else Reservation(books, expected, now_s, under_load=under_load)


def _exceeded(
    books: Sequence[AccountUsage], more: RequestUsage, held: RequestUsage, now_s: float, *, under_load: bool
) -> list[LimitExceeded]:
    """Return the limits that have no room for what `more` takes beyond what is `held` already."""
    lacks: list[LimitExceeded] = []
    for book in books:
        for kind, meter in book.limit_usages.items():
            amount = meter.amount(more) if held is NO_USAGE else meter.amount(more) - meter.amount(held)
            if amount <= 0 or not (book.always_binds or book.binds(kind, under_load=under_load)):
                continue
            meter.advance(now_s)
            if meter.counter.used + amount > meter.cap * (1 + ROUNDING):
                meter.unmet += amount
                period_s = book.quota.budget_period_s if kind is LimitKind.BUDGET else 60.0
                wait_s = meter.wait_s(amount, now_s)
                lacks.append(LimitExceeded(book.path, kind, meter.limit, amount, wait_s, period_s))
    return lacks


class Reservation:
    """Made by `reserve`."""

    __slots__ = ("_began_s", "_grants", "accounts", "held", "is_open")

    def __init__(
        self, books: Sequence[AccountUsage], expected: RequestUsage, now_s: float, *, under_load: bool = True
    ) -> None:
        self.held = expected
        """Usage that the accounts are charged with."""
        self.is_open = True
        self.accounts = books
        self._began_s = now_s
        self._grants: list[_Grant] = []
        for book in books:
            book.hold(self)
            for meter in book.limit_usages.values():
                grant = _Grant(book, meter)
                self._grants.append(grant)
                if total := meter.amount(expected):
                    is_binding = book.always_binds or book.binds(meter.kind, under_load=under_load)
                    grant.put(total, now_s, binds=is_binding)

    def __repr__(self) -> str:
        return f"<Reservation of {self.held}{'' if self.is_open else ', closed'}>"

    @property
    def version(self) -> int:
        """Changes when the limits of one of its accounts do."""
        version = 0
        for book in self.accounts:
            version += book.version
        return version

    def add_limit(self, book: AccountUsage, meter: LimitUsage, now_s: float) -> None:
        """One of its accounts has another limit from now on: it is charged with what is held."""
        if all(grant.meter is not meter for grant in self._grants):
            grant = _Grant(book, meter)
            self._grants.append(grant)
            # It was granted before there was this limit: that is not owed.
            grant.put(meter.amount(self.held), now_s, binds=False)

    def top_up(self, output_tokens: int, now_s: float, *, under_load: bool = True) -> tuple[LimitExceeded, ...]:
        """Reserve room for `output_tokens` more; if a limit has none, return its kind and reserve nothing."""
        if not self.is_open:
            return ()
        more = replace(self.held, output_tokens=self.held.output_tokens + output_tokens)
        lacks = _exceeded(self.accounts, more, self.held, now_s, under_load=under_load)
        if not lacks:
            self._charge(more, now_s, under_load=under_load)
        return tuple(lacks)

    def shrink(self, output_tokens: int, now_s: float) -> None:
        """Give back what is held beyond this many output tokens."""
        if self.is_open and output_tokens < self.held.output_tokens:
            self._charge(replace(self.held, output_tokens=output_tokens), now_s, under_load=True)

    def settle(self, used: RequestUsage, now_s: float, *, under_load: bool = True) -> None:
        """What the request has really taken: the rest is given back, what is missing is charged, and owed where it is
        beyond a limit.
        """
        if self.is_open:
            self._charge(used, now_s, under_load=under_load)

    def close(self, now_s: float) -> None:
        """End the reservation. Idempotent."""
        if not self.is_open:
            return
        self.is_open = False
        for grant in self._grants:
            if isinstance(grant.meter.counter, ConcurrencyCounter):
                grant.meter.counter.left_after(now_s - self._began_s)
                grant.put(0.0, now_s)
        for book in self.accounts:
            book.release(self)

    def _charge(self, used: RequestUsage, now_s: float, *, under_load: bool) -> None:
        self.held = used
        for grant in self._grants:
            total = grant.meter.amount(used)
            if total != grant.total:
                book = grant.book
                grant.put(total, now_s, binds=book.always_binds or book.binds(grant.meter.kind, under_load=under_load))


class _Grant(Struct, eq=False):
    """The part of one limit that a reservation holds: amounts by their slots, the newest last."""

    book: AccountUsage
    meter: LimitUsage
    amounts: list[tuple[int, float]] = []
    total: float = 0.0

    def put(self, total: float, now_s: float, *, binds: bool = True) -> None:
        """Set the total amount held. Usage that is charged while the limit does not bind never becomes a debt."""
        meter, more = self.meter, total - self.total
        self.total = total
        if more > 0:
            meter.demand += more
            room = inf if not binds else meter.limit if meter.lease is None else meter.shared_room(meter.lease)
            self.amounts.append((meter.counter.add(more, now_s, room), more))
            return
        less = -more
        while less > 0 and self.amounts:  # The newest amounts are released first.
            slot, amount = self.amounts.pop()
            taken = min(amount, less)
            meter.counter.take_back(taken, slot)
            if taken < amount:
                self.amounts.append((slot, amount - taken))
            less -= taken
