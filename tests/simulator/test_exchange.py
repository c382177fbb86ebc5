"""Routers in virtual time hear each other after a delay, and come to the same books whatever is lost."""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from routing.decision.router import Router
from routing.replica_state import CATCH_UP_S, Snapshot, StateUpdate
from scorers.registry import routings
from simulator.clock import run_virtually
from simulator.exchange import Exchange
from tests.routing.engines import TALK, add_pod, ask, place
from tests.routing.exchanges import loads


def routers(count: int) -> list[Router]:
    made = [Router(routings()["warm"]) for _ in range(count)]
    for router in made:
        for number in range(3):
            add_pod(router, f"http://{number}")
    return made


def test_updates_come_after_the_delay_and_not_before() -> None:
    """A batch is put together, then travels; a moment earlier nobody knows of it."""

    async def scene() -> None:
        here, there = routers(2)
        exchange = Exchange(delay_s=0.5)
        for router in (here, there):
            exchange.join(router)
        placement = place(here, ask())
        await asyncio.sleep(0.49)
        assert loads(there) == {}
        await asyncio.sleep(0.02)
        assert loads(there) == loads(here) != {}
        placement.release(asyncio.get_running_loop().time())
        await exchange.settle()
        assert there.ledger.is_empty()
        assert exchange.updates >= 2

    run_virtually(scene())


@pytest.mark.parametrize("loss", [0.0, 0.3, 0.95])
def test_books_agree_in_the_end_whatever_was_lost(loss: float) -> None:
    """Sixteen routers, a third of all batches lost: when all have stated what is open, all hold the same."""

    async def scene() -> None:
        draw = Random(7).random
        members = routers(16)
        exchange = Exchange(delay_s=0.05, loss=loss, draw=draw)
        for router in members:
            exchange.join(router)
        held = []
        for number in range(200):
            now_s = asyncio.get_running_loop().time()
            placement = place(members[number % 16], ask(TALK[number:]), now_s=now_s, draw=draw())
            if draw() < 0.9:
                placement.first_token(now_s + 0.001)
                placement.release(now_s + 0.001)
            else:
                held.append(placement)
            await asyncio.sleep(0.05)
        await exchange.settle()
        assert len(held) > 5
        for router in members[1:]:
            assert loads(router) == loads(members[0])

    run_virtually(scene())


def test_without_loss_each_states_once() -> None:
    """A statement costs all that is open: where every batch comes, one is enough for who has just come."""

    async def scene() -> None:
        members = routers(3)
        exchange = Exchange(delay_s=0.01)
        hearings = [exchange.join(router) for router in members]
        stated: list[StateUpdate] = []
        apply = hearings[1].apply

        def applied(
            name: int, number: int, updates: Sequence[StateUpdate], now_s: float, sent_s: float | None = None
        ) -> bool:
            stated.extend(updates)
            return apply(name, number, updates, now_s, sent_s)

        hearings[1].apply = applied  # type: ignore[method-assign]
        for _ in range(50):
            place(members[0], ask()).release(asyncio.get_running_loop().time())
            await asyncio.sleep(0.1)
        assert sum(isinstance(word, Snapshot) for word in stated) == 1
        assert hearings[1].gaps == 0

    run_virtually(scene())


def test_what_was_reported_while_it_was_cut_is_received_after() -> None:
    """Alone everybody goes on; when all is mended the prompts of the meantime are warm to all, and the books agree."""

    async def scene() -> None:
        here, there = routers(2)
        exchange = Exchange(delay_s=0.01)
        for router in (here, there):
            exchange.join(router)
        held = place(here, ask())
        await asyncio.sleep(1)
        exchange.cut()
        assert there.ledger.is_empty()
        meanwhile = place(here, ask(b"meanwhile " * 300), draw=0.9)
        meanwhile.first_token(asyncio.get_running_loop().time())
        meanwhile.release(asyncio.get_running_loop().time())
        await asyncio.sleep(1)
        assert not list(there.index.match(meanwhile.request.prompt, 0b111))
        exchange.mend()
        await exchange.settle()
        assert list(there.index.match(meanwhile.request.prompt, 0b111))
        assert loads(there) == loads(here) != {}
        held.release(asyncio.get_running_loop().time())
        await exchange.settle()
        assert there.ledger.is_empty()

    run_virtually(scene())


def faults(fault: str) -> tuple[list[int], list[int]]:
    """Requests that each of two routers knows during a fault, a while after it began, and after it."""

    async def scene() -> tuple[list[int], list[int]]:
        members = routers(2)
        exchange = Exchange(delay_s=0.005, beats=True)
        for router in members:
            exchange.join(router)
        for router in members:
            place(router, ask())
        await asyncio.sleep(1)
        getattr(exchange, fault)(*([0] if fault == "isolate" else []))
        for router in members:
            place(router, ask(), now_s=asyncio.get_running_loop().time())
        await asyncio.sleep(2)
        during = [sum(router.ledger.running) for router in members]
        assert (members[1].peers_missing_s is not None) is (
            members[0].peers_missing_s is not None or fault == "isolate"
        )
        exchange.restore()
        await asyncio.sleep(0.5)
        after = [sum(router.ledger.running) for router in members]
        await asyncio.sleep(CATCH_UP_S)
        assert [router.peers_missing_s for router in members] == [None, None]
        exchange.close()
        return during, after

    return run_virtually(scene())


@pytest.mark.parametrize(("fault", "during"), [("drop", [3, 3]), ("stall", [3, 3]), ("isolate", [4, 3])])
def test_faults_hold_back_what_they_should_and_are_mended(fault: str, during: list[int]) -> None:
    """Of four requests; half a second after the fault both know all, and nobody is missing once they have caught up."""
    assert faults(fault) == (during, [4, 4])
