"""Several gateways with full queues whose clients all hang up in one tick, at the worst moments of their link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import cycle

import pytest

from bench.slo.gateways import Gateways
from bench.slo.policies import HEARTH
from bench.slo.reading import load_scenario
from bench.slo.traffic import Offered
from bench.slo.virtual import Job, _Venue
from simulator.clock import run_virtually
from tenancy.objective import Tier

AT_ONCE = 240
"""Requests at once: far more than four engines begin within a second."""

SCENARIO = load_scenario("overload-5")


def healthy(_: _Venue) -> None:
    """Nothing happens to the link."""


def stalled(venue: _Venue) -> None:
    """Redis holds back all updates."""
    assert venue._exchange is not None
    venue._exchange.stall()


def back(venue: _Venue) -> None:
    """Redis goes on: peers are caught up with."""
    assert venue._exchange is not None
    venue._exchange.restore()


def reload(venue: _Venue) -> None:
    """A policy without the tier in the middle, in which the lowest has become the highest, is applied everywhere."""
    changed: Mapping[str, Tier] = {
        "gold": SCENARIO.tiers["gold"],
        "bronze": replace(SCENARIO.tiers["bronze"], priority=20, tpot_s=0.02),
        "new": replace(SCENARIO.tiers["silver"], name="new", priority=5),
    }
    for replica in venue._replicas:
        assert replica.room.admission is not None
        replica.room.admission.tiers = changed


@pytest.mark.parametrize(
    "steps",
    [
        [healthy, healthy],
        [stalled, back],
        [stalled, reload, back],
        [stalled, back, reload],
        [reload, stalled, back, stalled, back],
    ],
    ids=lambda steps: "-".join(step.__name__ for step in steps),
)
def test_clients_that_hang_up_together_leave_nothing_behind(steps: list[Callable[[_Venue], None]]) -> None:
    """Whatever the link and the policy do meanwhile: nothing raises, nothing waits or is charged anywhere afterwards,
    and the next request of each gateway is answered at once.
    """

    async def play() -> None:
        loop = asyncio.get_running_loop()
        faults = list[dict[str, object]]()
        loop.set_exception_handler(lambda _, context: faults.append(context))
        venue = _Venue(Job(SCENARIO, HEARTH, 64.0, 1, gateways=Gateways(4)), 60.0)
        tenants = cycle(SCENARIO.tenants)
        for round_number, step in enumerate(steps):
            tasks = [
                asyncio.create_task(venue.ask(number, Offered(loop.time(), next(tenants), 1_500, 300)))
                for number in range(round_number * AT_ONCE, (round_number + 1) * AT_ONCE)
            ]
            await asyncio.sleep(0.6)
            assert any(replica.room.has_waiters() for replica in venue._replicas)
            step(venue)
            await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.6)
        back(venue)
        await asyncio.sleep(15.0)
        for replica in venue._replicas:
            assert not replica.room.has_waiters()
            assert replica.router.ledger.is_empty()
            assert replica.router.peers_missing_s is None
            assert replica.room.admission is not None
            for queue in replica.room.admission.queues.values():
                assert not queue.waiting
                assert not queue.has_peers_waiting
                assert not any(line.fair_share._open for line in queue.tier_queues.values())
        gold = next(tenant for tenant in SCENARIO.tenants if tenant.tier == "gold")
        last = [Offered(loop.time(), gold, 500, 10) for _ in range(12)]
        await asyncio.gather(*(venue.ask(10_000 + number, offered) for number, offered in enumerate(last)))
        assert all(result.is_answered for result in venue.fates[-len(last) :])
        venue.close()
        assert not faults

    run_virtually(play())
