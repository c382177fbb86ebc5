"""Keeps the slices that a gateway holds of limits it shares: asks for them, gives them back, and goes on without them.

Nobody's request waits for it, but where an account runs short: then one ask is under way for all requests that wait.
Accounts in use are told of once a second. While the lender is away each gateway goes by `cap_apart`; when it is back,
or has forgotten everything, nobody takes more than an even share until as many have said what they hold as there were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from gateway.limits.coordinator import Lender, LenderAway
from gateway.observe.log import EventLog
from gateway.runtime.guard import restarted
from tenancy.limits.account_usage import Book, Lack, Meter, Needs
from tenancy.limits.leases import Ask
from tenancy.limits.shared_limits import (
    DEAD_S,
    GRACE_S,
    asks_of,
    cap_apart,
    farewell_of,
    float_of,
    stretch,
    take_grants,
)
from tenancy.limits.usage import Kind

BEAT_S = 1.0

FIRST_BEAT_S = 0.05
"""Until the lender was heard for the first time."""

DUE_S = 4.0
"""An account that nobody used since the last ask is told of this often, well within `DEAD_S`."""

DENIED_S = 0.1
"""A caller that is over its limit and goes on asking must not keep the lender busy."""

AT_ONCE = 8
"""Asks of one beat under way."""

FAREWELL_S = 0.5

ROLL = ""
"""The account by which gateways count each other: everybody holds one of it."""

HERE = (Ask("here", 1e9, held=1.0, wanted=1.0, least=0.0, keeps_s=DEAD_S),)


class Keeper:
    """One per gateway process that shares its limits."""

    def __init__(
        self,
        lender: Lender,
        *,
        who: str,
        processes: int,
        books: Callable[[], Iterable[Book]],
        clock: Callable[[], float],
        say: EventLog,
    ) -> None:
        self.replicas = processes
        """How many share the limits, as last known."""
        self.is_apart = True
        """Whether the lender is away."""
        self.asked = 0
        self._lender = lender
        self._who = who
        self._books = books
        self._clock = clock
        self._say = say
        self._heard_s = clock()
        self._has_heard = False
        self._gathers_until_s = 0.0
        self._told_s: dict[str, float] = {}
        self._denied_s: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[bool]] = {}

    async def run(self) -> None:
        """Keep time until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lender.run(), name="lender")
            try:
                await self._keep_time()
            finally:
                await self._say_farewell()

    @restarted("limits")
    async def _keep_time(self) -> None:
        while True:
            await self._beat()
            await asyncio.sleep(BEAT_S if self._has_heard else FIRST_BEAT_S)

    # -- what accounts do ----------------------------------------------------------------------------------------------

    def open(self, book: Book) -> None:
        """An account is used for the first time, or has limits that it had not."""
        for meter in book.meters.values():
            if meter.lent is None:
                meter.cap = cap_apart(meter, self.replicas, self._silent_s) if self.is_apart else 0.0

    async def relieve(self, books: Iterable[Book], lacks: Iterable[Lack]) -> bool:
        """Have more lent where requests find no room. Returns whether it is worth while to look again."""
        needs: dict[str, dict[Kind, float]] = {}
        for lack in lacks:
            needs.setdefault(lack.path, {})[lack.kind] = lack.amount
        short = [book for book in books if book.path in needs]
        if self.is_apart:
            return all(stretch(book, needs[book.path]) for book in short)
        if any(self._clock() - self._denied_s.get(book.path, 0.0) < DENIED_S for book in short):
            return False
        return all(await asyncio.gather(*(self._ask_once(book, needs[book.path]) for book in short)))

    async def _ask_once(self, book: Book, needs: Needs) -> bool:
        """Ask, or wait for the ask that is under way. Returns whether anything has changed."""
        task = self._asking.get(book.path)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(book, needs), name=f"ask for {book.path}")
            self._asking[book.path] = task
            task.add_done_callback(lambda _: self._asking.pop(book.path, None))
            return await asyncio.shield(task)
        await asyncio.shield(task)
        return True

    async def _ask(self, book: Book, needs: Needs) -> bool:
        """Returns whether something may be used now that might not be before."""
        return self.is_apart or await self._be_granted(book, needs)

    async def _be_granted(self, book: Book, needs: Needs) -> bool:
        now_s = self._clock()
        is_gathering = now_s < self._gathers_until_s
        asks = asks_of(book, now_s, replicas=self.replicas, is_gathering=is_gathering, needs=needs)
        self.asked += 1
        self._told_s[book.path] = now_s
        try:
            grants = await self._lender.ask(book.path, self._who, asks)
        except LenderAway:
            self.part()
            return True
        self._heard_s, self._has_heard = now_s, True
        caps = [meter.cap for meter in book.meters.values()]
        has_forgotten = take_grants(book, asks, grants)
        if self.is_apart:  # Another ask has found the lender away meanwhile: nobody makes up for what this one gave up.
            self._stand_alone(book)
            return True
        if has_forgotten and not is_gathering:
            self._gather("the limits' counts were lost and are being told again")
        has_grown = any(meter.cap > cap for meter, cap in zip(book.meters.values(), caps, strict=False))
        if needs and not has_grown:
            self._denied_s[book.path] = now_s
        return has_grown

    # -- keeping time --------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        now_s = self._clock()
        books = list(self._books())
        if self.is_apart and not await self._come_together(books):
            self.part()
            return
        try:
            await self._call_roll()
        except LenderAway:
            self.part()
            return
        await self._tell([book for book in books if self._is_due(book, now_s)])
        if len(self._told_s) > 2 * len(books):
            self._told_s = {book.path: self._told_s[book.path] for book in books if book.path in self._told_s}
        self._denied_s.clear()

    def _is_due(self, book: Book, now_s: float) -> bool:
        if now_s - self._told_s.get(book.path, 0.0) >= DUE_S:
            return any(meter.lent is not None and (meter.lent.slice or meter.memory.used) for meter in _meters(book))
        return any(meter.demand or meter.unmet or _has_spare(meter, self.replicas) for meter in _meters(book))

    async def _come_together(self, books: list[Book]) -> bool:
        """The lender may be back. First all say what they hold, then who is here: who is counted has said it."""
        even = 1.0 / self.replicas
        keeps_slices = self._silent_s < GRACE_S
        caps = {meter: meter.cap for book in books for meter in _meters(book)}
        self._gathers_until_s = self._clock() + DEAD_S if self._has_heard else 0.0
        self.is_apart = False
        for meter in caps:
            held = meter.lent.slice if meter.lent is not None else 0.0
            meter.cap = min(meter.cap, held if keeps_slices or meter.kind is Kind.BUDGET else meter.limit * even)
        await self._tell(books)
        if not self.is_apart:
            with suppress(LenderAway):
                await self._call_roll()
                return True
        return False

    async def _tell(self, books: list[Book]) -> None:
        waiting = iter(books)

        async def tell() -> None:
            for book in waiting:
                if not self.is_apart:
                    await self._ask_once(book, {})

        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(books))):
                group.create_task(tell(), name="tell of accounts")

    async def _call_roll(self) -> None:
        (told,) = await self._lender.ask(ROLL, self._who, HERE)
        present = 1 + int(told.elsewhere)
        is_first = not self._has_heard
        self._heard_s, self._has_heard = (now_s := self._clock()), True
        if not told.was_known and not is_first and now_s >= self._gathers_until_s:
            self._gather("the limits' lender has been emptied: all say again what they hold")
        elif present >= self.replicas or now_s >= self._gathers_until_s:
            self.replicas, self._gathers_until_s = present, 0.0

    def _gather(self, words: str) -> None:
        """Take no more than an even share until all are here again, or dead."""
        self._gathers_until_s = self._clock() + DEAD_S
        self._told_s.clear()
        self._say("info", words, replicas=self.replicas)

    # -- alone ---------------------------------------------------------------------------------------------------------

    @property
    def _silent_s(self) -> float:
        """How long nothing was heard, or since the start: others may have used everything just before."""
        return self._clock() - self._heard_s

    def part(self) -> None:
        """The lender is away, or as good as away: go on without it until it is heard again."""
        self.is_apart = True
        for book in self._books():
            self._stand_alone(book)

    def _stand_alone(self, book: Book) -> None:
        """What may be used of an account while the lender is away."""
        for meter in _meters(book):
            meter.cap = cap_apart(meter, self.replicas, self._silent_s)

    async def _say_farewell(self) -> None:
        """What was used stays counted; what runs no more, and what was never used, comes free at once."""
        if self.is_apart:
            return
        with suppress(LenderAway, TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                for book in self._books():
                    stays, ends = farewell_of(book, self._clock())
                    if stays:
                        await self._lender.ask(book.path, self._who, stays)
                    if ends:
                        await self._lender.leave(book.path, self._who, ends)
                await self._lender.leave(ROLL, self._who, HERE)


def _has_spare(meter: Meter, replicas: int) -> bool:
    """Whether it holds so much more than is used that others should have it."""
    return meter.lent is not None and meter.cap - meter.memory.used >= float_of(meter, replicas) / 2


def _meters(book: Book) -> tuple[Meter, ...]:
    return tuple(book.meters.values())
