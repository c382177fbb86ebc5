"""Limits of callers: what requests reserve, and what becomes of it. Callers without accounts never come here."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from gateway.limits.estimate import Expecting
from gateway.limits.lease_keeper import Keeper
from gateway.limits.meter import Tab
from gateway.limits.rate_limit_headers import fields_of
from gateway.limits.rejection import OverLimit
from routing.cost import Ratio
from routing.request import Request, Usage
from tenancy.limits.account_usage import Book, Books, Lack
from tenancy.limits.reservation import Reservation, reserve
from tenancy.limits.usage import Kind, Rates
from tenancy.tenants import Caller, Quota, Tenant, quota_of, renewed

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
