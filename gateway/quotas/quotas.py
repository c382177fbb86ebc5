"""Limits of callers: what requests reserve, and what becomes of it. Callers without accounts never come here."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from gateway.quotas.expecting import Expecting
from gateway.quotas.keeper import Keeper
from gateway.quotas.over import OverLimit
from gateway.quotas.tab import Tab
from gateway.quotas.told import fields_of
from routing.learning import Usage
from routing.ratio import Ratio
from routing.request import Request
from tenancy.limits.book import Book, Books, Lack
from tenancy.limits.reservation import Reservation, reserve
from tenancy.limits.use import Kind, Rates
from tenancy.tenants import Caller

WAIT_S = 1.0
"""So long a request waits for others' leave where its own gateway runs short; usually a millisecond, and no longer than
a lender takes to be found away."""

MOST_ASKS = 200

MEMORY = 200.0


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
        self._per_event: dict[str, Ratio] = {}
        self._tasks: set[asyncio.Task[bool]] = set()

    async def reserve(self, request: Request, caller: Caller) -> Tab:
        """Take what a request is expected to need from all of its caller's accounts. Raises `OverLimit`."""
        books = self.books.of(caller.accounts, self.now_s())
        found = self._try(request, caller, books)
        if not isinstance(found, Reservation) and self.keeper is not None:
            found = await self._try_again(self.keeper, request, caller, books, found)
        if isinstance(found, Reservation):
            return Tab(self, request, caller.tenant.name, found)
        fields = fields_of(books, self.now_s(), anthropic=request.api.is_anthropic)
        refusal = OverLimit(found, fields, self._draw())
        self.refused[tenant_of(refusal.lack.path), refusal.lack.kind] += 1
        raise refusal

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

    def tokens_per_event(self, model: str) -> float:
        """More than one where engines guess tokens ahead, or send several at once."""
        known = self._per_event.get(model)
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
        if events and usage.completion_tokens:
            known = self._per_event.setdefault(request.model, Ratio(MEMORY, seen=1.0))
            known.observe(usage.completion_tokens / events, min(1.0, events / 50))


def tenant_of(path: str) -> str:
    """Whose account it is: `search` of `search/user/ann`."""
    return path.partition("/")[0]
