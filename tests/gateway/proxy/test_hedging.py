"""A second engine beside a late one: one of them answers, whole; of the other a line on the receipt is left."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.spine.carrier import LegEnd
from gateway.spine.patience import Patience
from routing.retries import RetryTerms, Try
from tenancy.tenants import ANONYMOUS, Caller
from tests.gateway.proxy.rig import CHAT_PATH, Rig, a_chat, a_rig, request_bytes
from tests.gateway.proxy.scripted import Step, cut, until
from tests.gateway.proxy.wire import (
    LAST_CHUNK,
    STREAM_HEAD,
    answer_bytes,
    chat_answer,
    chat_event,
    chat_stream,
    chunk,
    chunked,
    error_answer,
)

HEDGED = Patience(retries=RetryTerms(hedge=True, hedge_after=0.001, hedge_least_s=0.001))
SPENT = Patience(retries=replace(HEDGED.retries, saved=0, share=0.0))
GOOD: list[Step] = [STREAM_HEAD + chunked(chat_stream("Hi", "."))]
WHOLE_TEXT = b"".join(chat_stream("Hi", ".", usage=False))


def attempts(rig: Rig) -> list[tuple[str, bool]]:
    (outcome,) = rig.outcomes
    return [(attempt.ended, attempt.hedge) for attempt in outcome.attempts]


async def test_the_second_answers_where_the_first_is_late() -> None:
    """The client gets one whole answer; the late pod is told to stop, and is blamed for nothing."""
    async with a_rig(pods=2, patience=HEDGED) as rig:
        rig.pods[0].plays([STREAM_HEAD, asyncio.Event()])
        rig.pods[1].plays(GOOD)
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True))
        assert (answer.status, answer.body) == (200, WHOLE_TEXT)
        await until(lambda: not rig.pods[0].writers)
        assert rig.ends == [(rig.pods[1].url, LegEnd.ANSWERED)]
    assert attempts(rig) == [("outrun", False), ("answered", True)]
    (outcome,) = rig.outcomes
    assert outcome.usage is not None
    assert outcome.wasted_tokens > 0
    assert outcome.ttft_s is not None


async def test_the_first_answers_where_it_is_first_after_all() -> None:
    """The second pod is told to stop, and the client has not a byte of it."""
    go = asyncio.Event()
    async with a_rig(pods=2, patience=HEDGED) as rig:
        rig.pods[0].plays([STREAM_HEAD, go, chunked(chat_stream("Hi", "."))])
        rig.pods[1].plays([STREAM_HEAD, asyncio.Event()])
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        await until(lambda: rig.pods[1].questions)
        go.set()
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, WHOLE_TEXT)
        await until(lambda: not rig.pods[1].writers)
        await until(lambda: rig.outcomes)
        assert rig.ends == [(rig.pods[0].url, LegEnd.ANSWERED)]
    assert attempts(rig) == [("answered", False), ("outrun", True)]


async def test_what_fails_first_leaves_it_to_the_second() -> None:
    """It is under way already: no third one is asked."""
    fail = asyncio.Event()
    go = asyncio.Event()
    async with a_rig(pods=2, patience=HEDGED) as rig:
        rig.pods[0].plays([STREAM_HEAD, fail, cut])
        rig.pods[1].plays([STREAM_HEAD, go, chunked(chat_stream("Hi", "."))])
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        await until(lambda: rig.pods[1].questions)
        fail.set()
        await until(lambda: rig.ends)
        go.set()
        answer = await client.answer()
        assert answer.body == WHOLE_TEXT
        await until(lambda: rig.outcomes)
    assert attempts(rig) == [("lost", False), ("answered", True)]
    assert len(rig.pods[0].questions) == 1


async def test_a_second_that_fails_is_no_loss() -> None:
    """The first is waited for as if nothing had been."""
    go = asyncio.Event()
    async with a_rig(pods=2, patience=HEDGED) as rig:
        rig.pods[0].plays([STREAM_HEAD, go, chunked(chat_stream("Hi", "."))])
        rig.pods[1].plays([error_answer("Oh no.", 500)])
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        await until(lambda: rig.ends)
        go.set()
        answer = await client.answer()
        assert answer.body == WHOLE_TEXT
        await until(lambda: rig.outcomes)
    assert attempts(rig) == [("answered", False), ("broken", True)]


async def test_a_winner_that_is_lost_is_gone_on_with() -> None:
    """The stream is the second's from its beginning on, and the client's all the same."""
    async with a_rig(pods=3, patience=HEDGED) as rig:
        rig.pods[0].plays([STREAM_HEAD, asyncio.Event()])
        rig.pods[1].plays([STREAM_HEAD + chunk(chat_event("Hi")), cut])
        rig.pods[2].plays([STREAM_HEAD + chunked(chat_stream("."))])
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True))
        assert answer.is_whole
        assert answer.chunks[0] == chat_event("Hi")
        assert b"error" not in answer.body
        assert answer.body.endswith(b"data: [DONE]\n\n")
    assert attempts(rig)[:2] == [("outrun", False), ("lost", True)]
    assert rig.outcomes[0].resumed == 1


async def test_a_client_that_goes_leaves_nothing_behind() -> None:
    """Both pods are told; the ledger is empty, as the rig sees to."""
    async with a_rig(pods=2, patience=HEDGED) as rig:
        for pod in rig.pods:
            pod.plays([STREAM_HEAD, asyncio.Event()])
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        await until(lambda: rig.pods[1].questions)
        client.leave()
        await until(lambda: not any(pod.writers for pod in rig.pods))
        await until(lambda: rig.outcomes)
        assert not rig.ends


@pytest.mark.parametrize(
    ("patience", "stream", "may_be_hedged"),
    [(HEDGED, False, True), (HEDGED, True, False), (Patience(), True, True), (SPENT, True, True)],
)
async def test_nobody_is_asked_twice_who_need_not_be(patience: Patience, stream: bool, may_be_hedged: bool) -> None:
    """A whole answer says nothing before its end; a tenant forbids it; it is off; the budget is spent."""
    caller, go = Caller(replace(ANONYMOUS, hedges=may_be_hedged)), asyncio.Event()
    async with a_rig(pods=2, patience=patience, identify=lambda *_: caller) as rig:
        good = chunked(chat_stream("Hi", ".")) if stream else answer_bytes(chat_answer())
        rig.pods[0].plays([STREAM_HEAD, go, good] if stream else [go, good])
        rig.pods[1].plays(GOOD)
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=stream)))
        await until(lambda: rig.pods[0].questions)
        if patience is SPENT:
            await until(lambda: rig.budget.refused[Try.HEDGE])
        go.set()
        assert (await client.answer()).status == 200
        assert not rig.pods[1].questions


async def test_retries_end_where_the_budget_does() -> None:
    """However many pods there are; who has not been reached costs nothing, and one that is gone may be left."""
    broke = Patience(retries=RetryTerms(saved=0, share=0.0))
    async with a_rig(pods=3, patience=broke) as rig:
        rig.pods[0].plays([error_answer("Busy.", 503)])
        rig.pods[1].plays([STREAM_HEAD + LAST_CHUNK], GOOD)
        rig.pods[2].plays(GOOD)
        assert (await rig.ask(CHAT_PATH, a_chat(stream=True))).status == 503
        assert (await rig.ask(CHAT_PATH, a_chat(stream=True))).status == 200
        rig.pods[0].close_listener()
        for writer in tuple(rig.pods[0].writers):
            writer.transport.abort()
        assert (await rig.ask(CHAT_PATH, a_chat(stream=True))).status == 200
