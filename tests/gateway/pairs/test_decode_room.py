"""Prefill waits for room at the decode engine, in order, and not without end."""

from __future__ import annotations

import asyncio

from gateway.pairs.decode_room import MAX_HELD_S, DecodeRoom
from routing.facts import Role
from routing.ledger import Charge, Ledger
from routing.pods import EngineShape
from simulator.clock import run_virtually
from tests.gateway.pairs.played import ANSWERED, Ground, PairCarrier, Part

CAPACITY = 100.0


class Scene:
    """An engine that holds a hundred tokens, and who has entered."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.ledger.resize(1)
        self.clock = asyncio.get_running_loop().time
        self.room = DecodeRoom(self.ledger, self.clock)
        self.entered: list[tuple[str, float]] = []

    def charge(self, tokens: float) -> Charge:
        return self.ledger.charge(
            0, prefill_tokens=0.0, prefill_s=0.0, kv_tokens=tokens, sequences=1, now_s=self.clock(), queues=False
        )

    def peer(self, tokens: float) -> Charge:
        """A request of another gateway, which may be held there."""
        charge = Charge(0, 0, 0.0, 0.0, tokens, 1, queues=False)
        self.ledger.put(charge, self.clock(), is_of_peer=True)
        return charge

    def end(self, charge: Charge) -> None:
        self.ledger.release(charge, self.clock())
        self.room.ended(0)

    def enter(self, name: str, tokens: float, by_s: float = 1e6) -> tuple[Charge, asyncio.Task[None]]:
        charge = self.charge(tokens)

        async def wait() -> None:
            await self.room.enter(charge, CAPACITY, by_s)
            self.entered.append((name, self.clock()))

        return charge, asyncio.create_task(wait())


def test_who_does_not_fit_waits_until_streams_end_and_in_turn() -> None:
    """A small request does not overtake; both go when what they need is free."""

    async def play() -> None:
        scene = Scene()
        first, _ = scene.enter("first", 80.0)
        await asyncio.sleep(1.0)
        scene.enter("large", 60.0)
        scene.enter("small", 10.0)
        await asyncio.sleep(4.0)
        assert [name for name, _ in scene.entered] == ["first"]
        scene.end(first)
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.01)
        assert [name for name, _ in scene.entered] == ["first", "large", "small"]
        assert repr(scene.room) == "<DecodeRoom 0 held>"

    run_virtually(play())


def test_gateways_do_not_wait_for_each_other_at_an_idle_engine() -> None:
    """What came to peers after the first of those held does not count; what came before does, until it ends."""

    async def play() -> None:
        scene = Scene()
        running, before = scene.charge(90.0), scene.peer(60.0)
        scene.enter("ours", 60.0)
        await asyncio.sleep(0.5)
        after = scene.peer(60.0)
        scene.end(running)
        await asyncio.sleep(1.0)
        assert scene.entered == []
        scene.end(before)
        await asyncio.sleep(0.1)
        assert [name for name, _ in scene.entered] == ["ours"]
        scene.enter("next", 20.0)
        scene.ledger.prefill_done(after, scene.clock())
        await asyncio.sleep(1.0)
        assert len(scene.entered) == 1, "a stream of a peer counts whenever it came"
        scene.end(after)
        await asyncio.sleep(0.1)
        assert [name for name, _ in scene.entered] == ["ours", "next"]

    run_virtually(play())


def test_room_that_another_gateway_has_left_is_found_too() -> None:
    """Within a quarter of a second, without a word here."""

    async def play() -> None:
        scene = Scene()
        theirs = scene.charge(90.0)
        scene.enter("ours", 50.0)
        await asyncio.sleep(2.1)
        scene.ledger.release(theirs, scene.clock())
        await asyncio.sleep(1.0)
        ((_, at_s),) = scene.entered
        assert 2.1 <= at_s <= 2.4

    run_virtually(play())


def test_no_request_waits_for_ever() -> None:
    """Half a minute, or as long as the request has; a request that never fits is not held at an empty engine."""

    async def play() -> None:
        scene = Scene()
        giant, _ = scene.enter("giant", 300.0)
        await asyncio.sleep(0.0)
        assert [name for name, _ in scene.entered] == ["giant"]
        scene.enter("patient", 50.0)
        scene.enter("hurried", 50.0, by_s=5.0)
        await asyncio.sleep(MAX_HELD_S + 1.0)
        entered = dict(scene.entered)
        assert entered["hurried"] == 5.0
        assert entered["patient"] == MAX_HELD_S
        scene.end(giant)

    run_virtually(play())


def test_one_who_goes_away_holds_no_other() -> None:
    """The next is the first then."""

    async def play() -> None:
        scene = Scene()
        first, _ = scene.enter("first", 80.0)
        await asyncio.sleep(0.0)
        gone, waiting = scene.enter("gone", 60.0)
        scene.enter("next", 15.0)
        await asyncio.sleep(1.0)
        waiting.cancel()
        scene.end(gone)
        await asyncio.sleep(0.3)
        assert [name for name, _ in scene.entered] == ["first", "next"]
        scene.end(first)

    run_virtually(play())


def test_no_prefill_begins_for_a_decode_engine_that_is_full() -> None:
    """Three prompts for an engine that holds one: each prefill follows the end of the answer before it."""

    async def play() -> None:
        stage = Ground(prefill=2, decode=1)
        stage.router.reshape_pod("http://d0", [EngineShape(None, stage_role(stage), 17_000, 16)])
        carrier = PairCarrier(decodes=[Part(ANSWERED, 3.0, token_after_s=0.05)])
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(stage.lead(carrier, tokens=14_000 + 1_000 * number, stream=True))
        assert [what for what, _ in carrier.legs] == ["prefill", "decode"] * 3
        assert all(outcome.reason is None for outcome in stage.outcomes)

    run_virtually(play())


def stage_role(stage: Ground) -> Role:
    """The role of the decode engine."""
    (engine,) = (each for pod in stage.router.fleet.pods for each in pod.engines if pod.url == "http://d0")
    return engine.role
