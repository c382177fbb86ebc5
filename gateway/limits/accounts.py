"""Limits of callers: what requests reserve, and what becomes of it. Callers without accounts never come here."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from sys import maxsize
from typing import Protocol

from gateway.limits.estimate import Expecting
from gateway.limits.lease_keeper import Keeper
from gateway.limits.rate_limit_response import REASONS, Fields, OverLimit, fields_of
from routing.learning import Usage
from routing.ratio import Ratio
from routing.refusal import Reason
from routing.request import Request
from tenancy.limits.book import Book, Books, Lack
from tenancy.limits.reservation import Reservation, reserve
from tenancy.limits.use import NOTHING, Kind, Rates, Use
from tenancy.quota import Quota
from tenancy.tenants import Caller, Tenant, quota_of, renewed

WAIT_S = 1.0
"""So long a request waits for others' leave where its own gateway runs short; usually a millisecond, and no longer than
a lender takes to be found away."""

MOST_ASKS = 200

MEMORY = 200.0

REMEMBERED = 4_096
"""Tenants and models whose events are known."""


class Quotas:
    """One per gateway process."""

    def __init__(
        self,
        expecting: Expecting,
        *,
        clock: Callable[[], float],
        draw: Callable[[], float],
        is_under_load: Callable[[], bool] = lambda: False,
    ) -> None:
        """`clock`: seconds since the epoch that never go back. `is_under_load`: whether requests wait for engines."""
        self.books = Books(opened=self._open)
        self.keeper: Keeper | None = None
        """Where limits are shared with other gateways."""
        self.refused: Counter[tuple[str, Kind]] = Counter()
        """By tenant and limit."""
        self.cut: Counter[tuple[str, Kind]] = Counter()
        self.now_s = clock
        self.is_under_load = is_under_load
        self.rates: Callable[[str], Rates] = expecting.rates
        self._expecting = expecting
        self._draw = draw
        self._tenants: Mapping[str, Tenant] | None = None
        """Of the policy in force."""
        self._per_event: OrderedDict[tuple[str | None, str], Ratio] = OrderedDict()
        """By tenant and model; by model alone under no tenant's name, for tenants of whom nothing is known."""
        self._tasks: set[asyncio.Task[bool]] = set()

    def go_by(self, tenants: Mapping[str, Tenant]) -> None:
        """Put a policy's quotas in force: in all accounts there are, whoever uses them, and in those that come.

        This is the only place that gives quotas to accounts. Streams under way go by them when they next look
        (`tab.py`), and a caller that came under another policy is held to this one.
        """
        self._tenants = tenants

        def quota_at(path: str) -> Quota | None:
            return quota_of(tenants, path)

        self.books.go_by(quota_at, self.now_s())

    async def reserve(self, request: Request, caller: Caller) -> Tab:
        """Take what a request is expected to need from all of its caller's accounts. Raises `OverLimit`."""
        if self._tenants is not None:
            caller = renewed(self._tenants, caller)
        books = self.books.of(caller.accounts, self.now_s())
        found = self._try(request, caller, books)
        if not isinstance(found, Reservation) and self.keeper is not None:
            found = await self._try_again(self.keeper, request, caller, books, found)
        if isinstance(found, Reservation):
            return Tab(self, request, caller.tenant.name, found, self._most_tokens(request, found))
        fields = fields_of(books, self.now_s(), anthropic=request.api.is_anthropic)
        refusal = OverLimit(found, fields, self._draw())
        self.refused[tenant_of(refusal.lack.path), refusal.lack.kind] += 1
        raise refusal

    def _most_tokens(self, request: Request, reservation: Reservation) -> int | None:
        """How many tokens each answer may have at most, where its client has not said that it wants no more.

        Of an answer that cannot be counted and cut while it is made: what is reserved, and what its limits could
        grant beyond that now. None where that is as much as the client wants, or as any engine can give.
        """
        if not request.api.generates or (request.stream and not request.holds_back):
            return None
        wanted = request.max_tokens
        if wanted is not None and reservation.held.output_tokens >= wanted * request.sequences:
            return None
        held, under_load, is_apart = reservation.held, self.is_under_load(), self._is_apart
        beyond = inf
        for book in reservation.books:
            for kind, meter in book.meters.items():
                if not kind.counts_output or not book.binds(kind, under_load=under_load):
                    continue
                left = max(0.0, meter.cap - meter.memory.used) if is_apart else meter.remaining
                if kind is Kind.BUDGET:
                    left = left / held.rates.output if held.rates.output else inf
                beyond = min(beyond, left)
        if beyond == inf:
            return None
        most = max(1, int(held.output_tokens + beyond) // request.sequences)
        if request.max_tokens is not None:
            return most if most < request.max_tokens else None
        contexts = self._expecting.contexts(request.model, self.now_s())
        if contexts is None:
            return most
        # An engine says no to more than its context, and needs to be told of nothing that none could exceed.
        shortest, longest = contexts
        return None if most >= longest else min(most, shortest)

    @property
    def _is_apart(self) -> bool:
        return self.keeper is not None and self.keeper.is_apart

    def _try(self, request: Request, caller: Caller, books: Sequence[Book]) -> Reservation | tuple[Lack, ...]:
        expected = self._expecting(request, caller, books)
        return reserve(books, expected, self.now_s(), under_load=self.is_under_load())

    async def _try_again(
        self, keeper: Keeper, request: Request, caller: Caller, books: Sequence[Book], found: tuple[Lack, ...]
    ) -> Reservation | tuple[Lack, ...]:
        """Have more lent, and look again, as long as that changes anything."""
        again: Reservation | tuple[Lack, ...] = found
        try:
            async with asyncio.timeout(WAIT_S):
                for _ in range(MOST_ASKS):
                    if isinstance(again, Reservation) or any(lack.amount > lack.limit for lack in again):
                        break
                    if not await keeper.relieve(books, again):
                        break
                    again = self._try(request, caller, books)
        except TimeoutError:
            # Whether the lender is late or we were stopped for a while: nobody has said that the limit is used up.
            keeper.part()
            again = self._try(request, caller, books)
        return again

    def _open(self, book: Book) -> None:
        if self.keeper is not None:
            self.keeper.open(book)

    # -- what tabs want ------------------------------------------------------------------------------------------------

    def tokens_per_event(self, tenant: str | None, model: str) -> float:
        """More than one where engines guess tokens ahead, or send several at once."""
        known = self._per_event.get((tenant, model)) or self._per_event.get((None, model))
        return known.value if known is not None else 1.0

    def want_more(self, reservation: Reservation, lacks: tuple[Lack, ...]) -> None:
        if self.keeper is not None:
            task = asyncio.get_running_loop().create_task(self._ask_for(self.keeper, reservation.books, lacks))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _ask_for(keeper: Keeper, books: Iterable[Book], lacks: Iterable[Lack]) -> bool:
        return await keeper.relieve(books, lacks)

    def note_cut(self, lack: Lack) -> None:
        self.cut[tenant_of(lack.path), lack.kind] += 1

    def learn(self, request: Request, tenant: str | None, usage: Usage, events: int) -> None:
        self._expecting.learn(request, tenant, usage)
        # Where tokens are held back, events say nothing of tokens.
        if events and usage.completion_tokens and not request.holds_back:
            per_event, weight = usage.completion_tokens / events, min(1.0, events / 50)
            for key in dict.fromkeys(((tenant, request.model), (None, request.model))):
                self._events_of(key).observe(per_event, weight)

    def _events_of(self, key: tuple[str | None, str]) -> Ratio:
        known = self._per_event.get(key)
        if known is None:
            if len(self._per_event) >= REMEMBERED:
                self._per_event.popitem(last=False)
            known = self._per_event[key] = Ratio(MEMORY, seen=1.0)
        return known


def tenant_of(path: str) -> str:
    """Whose account it is: `search` of `search/user/ann`."""
    return path.partition("/")[0]


STEPS = (64, 8, 1)
"""Tokens that a stream asks for when it has used up what it has; the most that there is room for."""

AHEAD = 32
"""So many tokens before that it asks for the first time: others may have to be asked for their leave."""


LOOK = 64
"""Events after which a stream looks whether its limits have changed."""


class Cashier(Protocol):
    """What a tab wants of whoever opened it."""

    def now_s(self) -> float: ...
    def is_under_load(self) -> bool: ...
    def rates(self, model: str) -> Rates: ...
    def tokens_per_event(self, tenant: str | None, model: str) -> float: ...
    def want_more(self, reservation: Reservation, lacks: tuple[Lack, ...]) -> None:
        """A stream will soon need what is not there: perhaps others have it."""
        ...

    def learn(self, request: Request, tenant: str | None, usage: Usage, events: int) -> None: ...
    def note_cut(self, lack: Lack) -> None:
        """A stream has to end for lack of this."""
        ...


class Tab:
    """One request. Whatever is said, and in whatever order, nothing is charged twice and nothing stays held."""

    __slots__ = (
        *("_asks_at", "_cashier", "_counts", "_events", "_heed_at", "_most", "_per_event", "_reservation", "_settled"),
        *("_tenant", "_version", "is_watched", "max_tokens", "request"),
    )

    def __init__(
        self,
        cashier: Cashier,
        request: Request,
        tenant: str | None,
        reservation: Reservation,
        max_tokens: int | None = None,
    ) -> None:
        self._cashier = cashier
        self._reservation = reservation
        self._events = 0
        self._settled = False
        self._tenant = tenant
        self.request = request
        self.max_tokens = max_tokens
        """How many tokens each answer may have at most, where its limits allow less than its client."""
        self.is_watched = request.stream
        """Whether its events have to be counted: there may be a limit on output before it has ended."""
        self._per_event = cashier.tokens_per_event(tenant, request.model) if self.is_watched else 1.0
        self._most = maxsize if request.max_tokens is None else request.max_tokens * request.sequences
        self._version, self._counts = 0, False
        self._asks_at = self._heed_at = maxsize
        if self.is_watched:
            self._look_up()

    def __repr__(self) -> str:
        return f"<Tab of {self.request.id}, {self._events} events, {self._reservation}>"

    def fields(self) -> Fields:
        """Headers that say how its accounts stand."""
        anthropic = self.request.api.is_anthropic
        return fields_of(self._reservation.books, self._cashier.now_s(), anthropic=anthropic)

    def passed(self, events: int) -> Reason | None:
        """Events have gone to the client. Returns why the stream must end, where it must."""
        self._events += events
        return self._heed() if self._events >= self._heed_at else None

    @property
    def unheeded(self) -> int:
        """How many events may pass before one needs leave."""
        return max(1, self._heed_at - self._events)

    @property
    def tokens(self) -> int:
        """Of output, as far as events tell."""
        return round(self._events * self._per_event)

    @property
    def held_tokens(self) -> int:
        """Of output, that are granted to it: those that have passed and those that may."""
        return self._reservation.held.output_tokens

    def usage(self) -> Usage:
        """What it took, as far as is known without the engine's word."""
        return Usage(self._reservation.held.input_tokens, self.tokens)

    def settle(self, usage: Usage | None, model: str) -> None:
        """The engine has answered in full, and says what that took where it says so."""
        if usage is None:
            return
        self._settled = True
        used = Use(
            input_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens or 0,
            output_tokens=usage.completion_tokens,
            rates=self._cashier.rates(model),
        )
        self._reservation.settle(used, self._cashier.now_s(), under_load=self._cashier.is_under_load())
        self._cashier.learn(self.request, self._tenant, usage, self._events)

    def close(self, *, was_carried: bool, was_served: bool) -> None:
        """It has ended. What was really used stays charged: the request if a pod had it, tokens if they were made."""
        reservation, now_s = self._reservation, self._cashier.now_s()
        if not was_carried:
            reservation.settle(NOTHING, now_s)
        elif not self._settled:
            held = reservation.held
            made = self.tokens if self.request.stream else held.output_tokens
            used = Use(1, held.input_tokens, held.cached_tokens, made, held.rates) if was_served else Use(1)
            reservation.settle(used, now_s, under_load=self._cashier.is_under_load())
        reservation.close(now_s)

    def _heed(self) -> Reason | None:
        reservation = self._reservation
        if reservation.version != self._version:
            # What was granted by other limits and not used yet has to be granted anew.
            reservation.shrink(self.tokens, self._cashier.now_s())
            self._look_up()
        while self._events >= self._asks_at:
            lacks = self._top_up()
            if lacks:
                return self._lack(lacks)
            self._asks_at = self._next_ask()
        self._heed_at = min(self._asks_at, self._events + LOOK)
        return None

    def _lack(self, lacks: tuple[Lack, ...]) -> Reason | None:
        """Nothing more is to be had: the stream ends where what it has ends."""
        held = self._reservation.held.output_tokens
        if self.tokens >= held:
            self._cashier.note_cut(lacks[0])
            return REASONS[lacks[0].kind]
        self._asks_at = max(self._events + 1, int(held / self._per_event))
        self._heed_at = min(self._asks_at, self._events + LOOK)
        self._cashier.want_more(self._reservation, lacks)
        return None

    def _look_up(self) -> None:
        """Go by the limits that there are now."""
        self._version = self._reservation.version
        self._counts = any(kind.counts_output for book in self._reservation.books for kind in book.meters)
        self._asks_at = self._next_ask()
        self._heed_at = min(self._asks_at, self._events + LOOK)

    def _top_up(self) -> tuple[Lack, ...]:
        """Take as much as there is room for, of the steps; where there is none at all, say for lack of what."""
        reservation, cashier = self._reservation, self._cashier
        lacks: tuple[Lack, ...] = ()
        for step in STEPS:
            more = min(step, self._most - reservation.held.output_tokens)
            lacks = reservation.top_up(more, cashier.now_s(), under_load=cashier.is_under_load())
            if not lacks:
                break
        return lacks

    def _next_ask(self) -> int:
        """At which event to ask for more; an answer as long as the client lets it be needs no more."""
        held = self._reservation.held.output_tokens
        if not self._counts or held >= self._most:
            return maxsize
        return max(1, int((held - AHEAD) / self._per_event))
