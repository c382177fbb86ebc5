"""A gateway is killed while a pod is at work for it, before the first token or behind a cut: nothing stays charged.

The client comes again, and gets the same answer. Nothing here waits for the clock. Pods fall silent, so each moment
stands until the next thing is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.chaos.cast import Cast, Gateway, key_of, on_stage
from tests.chaos.dialects import listen
from tests.chaos.programs import Program, pause
from tests.chaos.readings import read_charged, read_metrics
from tests.chaos.requested import Api, Asked, Heard, Tenant
from tests.chaos.rest import ENGINE_AT_REST, await_rest
from tests.chaos.sdks import LOST, Sdks

pytestmark = pytest.mark.timeout(600)

PATIENCE_S = 120.0

SETTINGS = """\
stall_detection: {initial_s: 280, engine_min_s: 280, stream_min_s: 280}
"""
"""Silence alone moves nobody here."""

ASKED = Asked(1, Api.CHAT, Tenant.NARROW, "story", is_streamed=True, most_tokens=60, leaves_after=None)


async def test_killed_while_it_resumes(tmp_path: Path) -> None:
    """Its stream's pod is gone, and the next one is at work for it."""
    async with on_stage(tmp_path, pods=2, gateways=2, settings=SETTINGS) as cast:
        await _befall(cast, {"kind": "mute", "after_chunks": 6, "requests": 1})
        async with asking(cast) as (received, listening):
            lost, *_ = await _at_work(cast, 1)
            await _until(lambda: _is(received.pieces))
            await lost.kill()
            await _at_work(cast, 1)
            killed = await _kill_who_carries(cast, listening)
        await _all_let_go(cast, killed)
        await _is_told_the_same(cast)
        for program in (lost, killed.program):
            await program.start()
            await program.ready(cast.session)
        assert not await await_rest(cast)


async def test_killed_before_the_first_token(tmp_path: Path) -> None:
    """A pod is at work for the request, and has sent no token."""
    async with on_stage(tmp_path, pods=2, gateways=2, settings=SETTINGS) as cast:
        await _befall(cast, {"kind": "hang"})
        async with asking(cast) as (received, listening):
            await _at_work(cast, 1)
            killed = await _kill_who_carries(cast, listening)
            assert not received.pieces
        await _befall(cast, {"kind": "none"})
        await _all_let_go(cast, killed)
        await _is_told_the_same(cast)
        await killed.program.start()
        await killed.program.ready(cast.session)
        assert not await await_rest(cast)


@asynccontextmanager
async def asking(cast: Cast) -> AsyncIterator[tuple[Heard, asyncio.Task[None]]]:
    """A client that does not try again by itself, and what it hears."""
    received, sdks = Heard(), Sdks(cast.front.url, key_of(Tenant.NARROW), retries=0)
    listening = asyncio.create_task(listen(sdks, ASKED, received, lambda: None))
    try:
        yield received, listening
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await sdks.close()


async def _at_work(cast: Cast, count: int) -> list[Program]:
    """Wait until so many of the pods that live have a request; these."""
    found: list[Program] = []

    async def are_found() -> bool:
        found[:] = [pod for pod in cast.pods if pod.is_up and await _has_request(cast, pod)]
        return len(found) == count

    await _until(are_found)
    return found


async def _has_request(cast: Cast, pod: Program) -> bool:
    reading = await read_metrics(cast.session, f"{pod.url}/metrics")
    return reading is not None and any(reading.sum_of(name) for name in ENGINE_AT_REST)


async def _kill_who_carries(cast: Cast, listening: asyncio.Task[None]) -> Gateway:
    """The gateway that has the request, at once. Its client hears that the connection is lost."""
    assert not listening.done()
    carriers = [gateway for gateway in cast.gateways if await _carries(cast, gateway)]
    assert len(carriers) == 1
    await carriers[0].program.kill()
    with pytest.raises(LOST):
        await listening
    return carriers[0]


async def _carries(cast: Cast, gateway: Gateway) -> bool:
    reading = await read_metrics(cast.session, gateway.metrics)
    return reading is not None and bool(reading.sum_of("hearth_requests_in_flight"))


async def _all_let_go(cast: Cast, killed: Gateway) -> None:
    """Of what the dead one had: its sibling of all charges, and engines of its requests."""
    (sibling,) = (gateway for gateway in cast.gateways if gateway is not killed)

    async def has_nothing() -> bool:
        works = [pod for pod in cast.pods if pod.is_up and await _has_request(cast, pod)]
        return not works and not await read_charged(cast.session, sibling)

    await _until(has_nothing)


async def _is_told_the_same(cast: Cast) -> None:
    """Asked again: text, finish reason and tokens as if nothing had been."""
    received, wanted = Heard(), Heard()
    for sdks, reported in (
        (Sdks(cast.front.url, key_of(Tenant.NARROW)), received),
        (Sdks(cast.undisturbed.url, "k"), wanted),
    ):
        await listen(sdks, ASKED, reported, lambda: None)
        await sdks.close()
    assert received.answer == wanted.answer


async def _befall(cast: Cast, fault: dict[str, object]) -> None:
    for pod in cast.pods:
        async with cast.session.post(f"{pod.url}/faults", json=fault) as answer:
            assert answer.status == 200, await answer.text()


async def _is(value: object) -> bool:
    return bool(value)


async def _until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await is_so():
            await pause(0.05)
