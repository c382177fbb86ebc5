"""Gateways that have lost sight of each other: what all of them use together has the bound that is written down."""

from __future__ import annotations

from random import Random

import pytest

from tenancy.limits.apart import cap_apart, stretch
from tenancy.limits.book import Book, Books, Needs
from tenancy.limits.reservation import Reservation, reserve
from tenancy.limits.shares import asks_of, take_grants
from tenancy.limits.slices import Slices
from tenancy.limits.use import Kind, Use
from tenancy.quota import Account, Quota

APART_S = 1.8e9
SPAN_S = 60.0
LOST_S = 90.0
END_S = 330.0


@pytest.mark.parametrize("replicas", [2, 4, 7])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("limit", "size"), [(6_000, 40), (400, 40), (30, 1)])
def test_the_bound_holds_when_all_lose_sight(replicas: int, seed: int, limit: int, size: int) -> None:
    """Traffic far above the limit that moves from gateway to gateway, before, during and long after the loss."""
    granted = _play(replicas, Random(seed), limit, size)
    bound = limit + replicas * max(limit / (8 * replicas), size)
    for end_s in {at_s for at_s, _ in granted}:
        within = sum(amount for at_s, amount in granted if end_s - SPAN_S < at_s <= end_s)
        assert within <= (limit if end_s < APART_S + LOST_S else bound)
    later = [(at_s, amount) for at_s, amount in granted if at_s > APART_S + LOST_S + 160]
    assert sum(amount for _, amount in later) > 0.4 * limit


class Play:
    """Some gateways, a lender that is there until `LOST_S`, and what was granted when."""

    def __init__(self, replicas: int, limit: int) -> None:
        account = Account("a", Quota(tokens_per_min=limit))
        self.books = [Books().of([account], APART_S)[0] for _ in range(replicas)]
        self.slices = Slices()
        self.since_s = 0.0
        for book in self.books:
            book.meters[Kind.TOKENS].cap = 0.0

    @property
    def now_s(self) -> float:
        return APART_S + self.since_s

    @property
    def is_lost(self) -> bool:
        return self.since_s >= LOST_S

    def beat(self) -> None:
        """What keepers do once a second."""
        for book in self.books:
            if not self.is_lost:
                self.relieve(book, {})
                continue
            for meter in book.meters.values():
                meter.cap = cap_apart(meter, len(self.books), self.since_s - LOST_S)

    def relieve(self, book: Book, needs: Needs) -> None:
        if self.is_lost:
            stretch(book, needs)
            return
        who, replicas = str(self.books.index(book)), len(self.books)
        asks = asks_of(book, self.now_s, replicas=replicas, is_gathering=False, needs=needs)
        take_grants(book, asks, self.slices.ask(who, asks, self.now_s))

    def serves(self, book: Book, size: int) -> bool:
        found = reserve([book], Use(1, size), self.now_s)
        if not isinstance(found, Reservation):
            self.relieve(book, {lack.kind: lack.amount for lack in found})
            found = reserve([book], Use(1, size), self.now_s)
        if isinstance(found, Reservation):
            found.close(self.now_s)
        return isinstance(found, Reservation)


def _play(replicas: int, random: Random, limit: int, size: int) -> list[tuple[float, int]]:
    play, granted = Play(replicas, limit), []
    busy = play.books[:1]
    for tick in range(int(END_S * 10)):
        play.since_s = tick / 10
        if tick % 200 == 0:
            busy = random.sample(play.books, random.randint(1, replicas))
        if tick % 10 == 0:
            play.beat()
        granted += [(play.now_s, size) for book in busy if play.serves(book, size)]
    return granted


def test_a_gateway_alone_goes_by_all_of_the_limit() -> None:
    """One that never had others has lost nobody."""
    [book] = Books().of([Account("a", Quota(tokens_per_min=100))], APART_S)
    [meter] = book.meters.values()
    assert cap_apart(meter, 1, float("inf")) == 100
