"""A pod whose server is well and whose engine has fallen silent, as its clients see it: not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from gateway.pipeline.attempt import AttemptLimits, AttemptStatus
from routing.retries import RetryTerms
from routing.stall_detection import StallBounds
from tests.gateway.http.rig import CHAT_PATH, a_chat, a_rig, request_bytes
from tests.gateway.http.scripted import ScriptedPod, until
from tests.gateway.http.wire import STREAM_HEAD, chat_event, chat_stream, chunk, chunked

IMPATIENT = StallBounds(factor=1.0, engine_min_s=1.0, stream_min_s=1.5, initial_s=0.01)
"""And yet so patient that no busy machine looks like a hung engine: what holds all of us up does not count."""

GOOD = STREAM_HEAD + chunked(chat_stream("Hi", "."))
NEVER = AttemptLimits(retries=RetryTerms(max_resumes=0))


async def test_a_stream_of_a_hung_engine_is_gone_on_with_elsewhere() -> None:
    """Its pod is known to hang, and its connection is closed."""
    async with a_rig(pods=2) as rig:
        rig.front.pool.set_stall_bounds(IMPATIENT)
        rig.pods[0].plays([STREAM_HEAD + chunk(chat_event("Hi")), asyncio.Event()])
        rig.pods[1].plays([STREAM_HEAD + chunked(chat_stream("."))])
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True))
        assert answer.is_whole
        assert b"error" not in answer.body
        assert rig.ends == [(rig.pods[0].url, AttemptStatus.ENGINE_HUNG), (rig.pods[1].url, AttemptStatus.OK)]
        await until(lambda: not rig.pods[0].writers)


async def test_a_call_that_is_held_back_until_it_is_complete_is_waited_for() -> None:
    """Its engine makes it meanwhile: only for longer than engines ever do is its silence one."""
    async with a_rig(patience=NEVER) as rig:
        rig.front.pool.set_stall_bounds(replace(IMPATIENT, buffered_output_grace_s=1e9))
        rig.pod.plays([STREAM_HEAD + chunk(chat_event("Hi")), asyncio.Event()])
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True, tools=[{"type": "function"}])))
        await client.head()
        patrol, looks = rig.front.pool._sweeper, 0
        walk = patrol.ticker._tick

        def count() -> None:
            nonlocal looks
            looks += 1
            walk()

        patrol.ticker._tick = count
        await until(lambda: looks > 12)
        assert not rig.ends


async def test_a_request_that_waits_for_a_hung_engine_is_answered_elsewhere() -> None:
    """A head without a token is no answer."""
    async with a_rig(pods=2) as rig:
        rig.front.pool.set_stall_bounds(IMPATIENT)
        rig.pods[0].plays([STREAM_HEAD, asyncio.Event()])
        rig.pods[1].plays([GOOD])
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True))
        assert answer.body == b"".join(chat_stream("Hi", ".", usage=False))
        assert rig.ends[0] == (rig.pods[0].url, AttemptStatus.ENGINE_HUNG)


async def test_one_stream_that_is_stuck_does_not_condemn_its_engine() -> None:
    """Others on it go on: the stream has timed out, and the engine does not hang."""
    is_over = asyncio.Event()
    async with a_rig(patience=NEVER) as rig:
        rig.front.pool.set_stall_bounds(IMPATIENT)
        rig.pod.plays(
            [STREAM_HEAD + chunk(chat_event("Hi")), asyncio.Event()],
            [STREAM_HEAD + chunk(chat_event("a")), asyncio.Event()],
        )
        stuck, flowing = await rig.client(), await rig.client()
        await stuck.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        await until(lambda: len(rig.pod.questions) == 1)
        before = set(rig.pod.writers)
        await flowing.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        await until(lambda: len(rig.pod.questions) == 2)
        (writer,) = rig.pod.writers - before
        await flowing.head()

        async def flow() -> None:
            while not is_over.is_set():
                writer.write(chunk(chat_event("b")))
                await flowing.chunk()

        task = asyncio.create_task(flow())
        answer = await stuck.answer()
        is_over.set()
        await task
        assert b'"pod_timeout"' in answer.body
        assert rig.ends == [(rig.pod.url, AttemptStatus.TIMEOUT)]


async def test_quiet_streams_do_not_condemn_engines_that_serve_others() -> None:
    """One waits on each engine; others are answered at once, between two looks. No engine hangs, nothing moves."""
    async with a_rig(pods=2) as rig:
        rig.front.pool.set_stall_bounds(IMPATIENT)
        released = asyncio.Event()
        for pod in rig.pods:
            pod.plays([STREAM_HEAD, released, chunked(chat_stream("late", "."))], [GOOD])
        quiet = [await rig.client(), await rig.client()]
        for number, client in enumerate(quiet):
            await client.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
            await until(partial(_have_been_asked, rig.pods, number + 1))
        assert [len(pod.questions) for pod in rig.pods] == [1, 1]
        looks, ticker = 0, rig.front.pool._sweeper.ticker
        walk = ticker._tick

        def count() -> None:
            nonlocal looks
            looks += 1
            walk()

        ticker._tick = count
        while looks < 24:
            answer = await rig.ask(CHAT_PATH, a_chat(stream=True))
            assert answer.status == 200
        assert all(end is AttemptStatus.OK for _, end in rig.ends)
        released.set()
        for client in quiet:
            assert b"late" in (await client.answer()).body
        assert {end for _, end in rig.ends} == {AttemptStatus.OK}


async def test_a_client_that_does_not_read_makes_no_hung_engine() -> None:
    """Its pod is paused: when it reads on, the answer comes to its end, and says nothing of how fast the engine is."""
    texts = ["x" * 1000] * 4000
    async with a_rig(patience=NEVER) as rig:
        rig.front.pool.set_stall_bounds(IMPATIENT)
        rig.pod.plays([STREAM_HEAD + chunked(chat_stream(*texts))])
        client = await rig.client()
        client.reader._limit = 1 << 10  # type: ignore[attr-defined]
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        lines = rig.front.pool._open.get(rig.pod.url, ())
        await until(lambda: any(line._is_paused for line in rig.front.pool._open.get(rig.pod.url, lines)))
        patrol, looks = rig.front.pool._sweeper, 0
        walk = patrol.ticker._tick

        def count() -> None:
            nonlocal looks
            looks += 1
            walk()

        patrol.ticker._tick = count
        await until(lambda: looks > 12)
        assert not rig.ends
        client.reader._limit = 1 << 24  # type: ignore[attr-defined]
        answer = await client.answer()
        assert answer.is_whole
        assert rig.ends == [(rig.pod.url, AttemptStatus.OK)]
        assert rig.outcomes[0].ttft_s is not None
        assert rig.outcomes[0].decode_s is None


async def test_a_client_that_does_not_read_keeps_no_engine_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while its request no longer counts as load; all of its answer comes when it reads on."""
    monkeypatch.setattr("gateway.relay.upstream_connection.LET_GO_S", 0.0)
    async with a_rig(patience=NEVER) as rig:
        rig.front.pool.set_stall_bounds(IMPATIENT)
        rig.pod.plays([STREAM_HEAD + chunked(chat_stream(*["x" * 1000] * 4000))])
        client = await rig.client()
        client.reader._limit = 1 << 10  # type: ignore[attr-defined]
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        await until(lambda: rig.router.ledger.last_turn == [1] and rig.router.ledger.is_empty())
        assert not rig.ends
        client.reader._limit = 1 << 24  # type: ignore[attr-defined]
        assert (await client.answer()).is_whole
        assert rig.router.ledger.is_empty()


def _have_been_asked(pods: Sequence[ScriptedPod], questions: int) -> bool:
    return sum(len(pod.questions) for pod in pods) == questions
