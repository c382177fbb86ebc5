"""Pods that fail, in every way and at every moment: what the client sees, who is asked next, what is learned."""

from __future__ import annotations

import asyncio

import pytest

from gateway.config.limits import Timeouts
from gateway.pipeline.attempt import AttemptLimits, AttemptStatus
from routing.retries import RetryTerms
from tests.gateway.http.rig import CHAT_PATH, QUICK, Rig, a_chat, a_rig, request_bytes
from tests.gateway.http.scripted import Step, close, cut, until
from tests.gateway.http.wire import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    answer_bytes,
    chat_answer,
    chat_event,
    chat_stream,
    chunk,
    chunked,
    error_answer,
    event,
)

GOOD_STREAM = [STREAM_HEAD + chunked(chat_stream("Hi", "."))]
GOOD = [answer_bytes(chat_answer())]
DEAD = event({"error": {"message": "EngineCore died.", "type": "InternalServerError", "param": None, "code": 500}})


def ends(rig: Rig) -> list[AttemptStatus]:
    return [end for _, end in rig.ends]


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ([cut], AttemptStatus.CONNECTION_RESET),
        ([close], AttemptStatus.CONNECTION_RESET),
        ([b"HTTP/1.1 200 OK\r\ncontent-le", cut], AttemptStatus.CONNECTION_RESET),
        ([STREAM_HEAD, cut], AttemptStatus.CONNECTION_RESET),
        ([STREAM_HEAD, close], AttemptStatus.CONNECTION_RESET),
        ([STREAM_HEAD + chunk(b": ping\n\n"), cut], AttemptStatus.CONNECTION_RESET),
        ([STREAM_HEAD + chunk(chat_event("H")[:50]), cut], AttemptStatus.CONNECTION_RESET),
        ([STREAM_HEAD + LAST_CHUNK], AttemptStatus.CONNECTION_RESET),
        ([STREAM_HEAD + chunked([DEAD, DONE])], AttemptStatus.UPSTREAM_5XX),
        ([b"220 smtp.example.com ESMTP\r\n"], AttemptStatus.INVALID_RESPONSE),
        ([error_answer("Busy.", 503)], AttemptStatus.UPSTREAM_BUSY),
        ([error_answer("Slow down.", 429)], AttemptStatus.UPSTREAM_BUSY),
        ([error_answer("Oh no.", 500)], AttemptStatus.UPSTREAM_5XX),
        ([answer_bytes({"error": "Unauthorized"}, 401)], AttemptStatus.UPSTREAM_5XX),
        ([error_answer("x" * 1000, 500)[:200], cut], AttemptStatus.CONNECTION_RESET),
    ],
)
async def test_a_pod_that_fails_before_the_first_token_is_replaced(script: list[Step], end: AttemptStatus) -> None:
    """The client gets the other pod's answer and never learns of the first."""
    async with a_rig(pods=2) as rig:
        rig.pods[0].plays(script)
        rig.pods[1].plays(GOOD_STREAM)
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True))
        assert answer.status == 200
        assert answer.body == b"".join([*chat_stream("Hi", ".", usage=False)])
        assert ends(rig) == [end, AttemptStatus.OK]
        first, second = (pod.questions[0].headers["x-request-id"] for pod in rig.pods)
        assert second == f"{first}-2"
        assert rig.pods[0].questions[0].body == rig.pods[1].questions[0].body
    (outcome,) = rig.outcomes
    assert [attempt.result for attempt in outcome.attempts] == [end, "ok"]


async def test_a_pod_that_takes_no_connection_is_replaced() -> None:
    """Refused connections cost the client nothing."""
    async with a_rig(pods=2) as rig:
        rig.pods[0].close_listener()
        rig.pods[1].plays(GOOD)
        assert (await rig.ask(CHAT_PATH, a_chat())).status == 200
        assert ends(rig) == [AttemptStatus.UNREACHABLE, AttemptStatus.OK]


async def test_a_pod_that_is_silent_is_given_up_in_time() -> None:
    """The deadline of the first byte holds for all attempts together."""
    async with a_rig(pods=2, timeouts=QUICK, patience=AttemptLimits(deadline_s=0.1)) as rig:
        rig.pods[0].plays([STREAM_HEAD, asyncio.Event()])
        rig.pods[1].plays(GOOD)
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True))
        assert (answer.status, answer.code) == (504, "pod_timeout")
        assert answer.headers["x-hearth-fault"] == "pod"
        assert ends(rig) == [AttemptStatus.TIMEOUT]
        await until(lambda: not rig.pods[0].writers)


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        ([cut], 502, "pod_lost"),
        ([b"nonsense\r\n\r\n"], 502, "pod_invalid_response"),
        ([error_answer("Busy.", 503)], 503, "server_is_overloaded"),
        ([error_answer("Oh no.", 500)], 502, "pod_error"),
        ([answer_bytes({"error": "Unauthorized"}, 401)], 502, "pod_error"),
    ],
)
async def test_when_no_pod_is_left_the_client_is_sent_the_reason(script: list[Step], status: int, code: str) -> None:
    """One whole error of ours, on a connection that lives on."""
    async with a_rig() as rig:
        rig.pod.plays(script)
        client = await rig.client()
        for _ in range(2):
            answer = await client.ask(CHAT_PATH, a_chat(stream=True))
            assert (answer.status, answer.code) == (status, code)
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["x-hearth-request-id"]


async def test_our_wrong_key_is_never_reported_as_the_clients() -> None:
    """A pod that does not take our key has nothing to say about the client's."""
    async with a_rig(key="ours") as rig:
        rig.pod.plays([answer_bytes({"error": "Unauthorized"}, 401)])
        answer = await rig.ask(CHAT_PATH, a_chat(), authorization="Bearer theirs")
        assert answer.status == 502
        assert "key" in answer.json()["error"]["message"]
        assert rig.pod.questions[0].headers["authorization"] == "Bearer ours"


@pytest.mark.parametrize("last_words", [[cut], [close], [LAST_CHUNK], [chunk(DEAD) + chunk(DONE) + LAST_CHUNK]])
async def test_a_stream_lost_in_the_middle_ends_with_an_error_event(last_words: list[Step]) -> None:
    """What was generated, an error that the SDK raises, [DONE], and a body that ends as bodies do."""
    go_on = asyncio.Event()
    async with a_rig(pods=2, patience=AttemptLimits(retries=RetryTerms(max_resumes=0))) as rig:
        rig.pods[0].plays([STREAM_HEAD + chunk(chat_event("Hi")), go_on, *last_words])
        rig.pods[1].plays(GOOD_STREAM)
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        status, _ = await client.head()
        assert status == 200
        assert await client.chunk() == chat_event("Hi")
        go_on.set()
        error = await client.chunk()
        assert error.startswith(b'data: {"error":{"message":')
        assert await client.chunk() == DONE
        assert await client.chunk() == b""
        assert not rig.pods[1].questions
        assert (await client.ask("/health")).status == 200
    assert rig.outcomes[0].status == 502


async def test_a_unary_answer_lost_in_the_middle_is_requested_again() -> None:
    """Nothing of one that is not long has gone to the client before all of it is there."""
    async with a_rig(pods=2) as rig:
        rig.pods[0].plays([GOOD[0][:-20], cut])
        rig.pods[1].plays(GOOD)
        answer = await rig.ask(CHAT_PATH, a_chat())
        assert (answer.status, answer.json()) == (200, chat_answer())
        assert ends(rig) == [AttemptStatus.CONNECTION_RESET, AttemptStatus.OK]


async def test_a_unary_answer_that_its_engine_gave_up_is_requested_again() -> None:
    """An engine that shuts down ends what it has with a reason of its own, under a head that says 200."""
    given_up = chat_answer("H")
    given_up["choices"][0]["finish_reason"] = "abort"
    async with a_rig(pods=2) as rig:
        rig.pods[0].plays([answer_bytes(given_up)])
        rig.pods[1].plays(GOOD)
        assert (await rig.ask(CHAT_PATH, a_chat())).json() == chat_answer()
        assert ends(rig) == [AttemptStatus.CONNECTION_RESET, AttemptStatus.OK]


@pytest.mark.parametrize("reason", [{"stop_reason": None}, {}], ids=["null", "left out"])
async def test_a_complete_message_that_ends_for_no_reason_is_requested_again(reason: dict[str, None]) -> None:
    """So vLLM's Anthropic API tells that its engine gave it up; one with a reason is passed on."""
    message: dict[str, object] = {"id": "msg_1", "type": "message", "content": [{"type": "text", "text": "Hi."}]}
    given_up, complete = {**message, **reason}, {**message, "stop_reason": "max_tokens"}
    requested = {"model": a_chat()["model"], "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    async with a_rig(pods=2) as rig:
        rig.pods[0].plays([answer_bytes(given_up)])
        rig.pods[1].plays([answer_bytes(complete)])
        assert (await rig.ask("/v1/messages", requested)).json() == complete
        assert ends(rig) == [AttemptStatus.CONNECTION_RESET, AttemptStatus.OK]


async def test_who_leaves_with_the_last_bytes_has_been_answered() -> None:
    """OpenAI's client closes at [DONE], before its pod has ended the body: nothing was lost, and usage is known."""
    async with a_rig() as rig:
        rig.pod.plays([STREAM_HEAD + b"".join(map(chunk, chat_stream("Hi", "."))), asyncio.Event()])
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        await client.head()
        while not (await client.chunk()).endswith(DONE):
            pass
        client.leave()
        await until(lambda: rig.outcomes)
        assert ends(rig) == [AttemptStatus.OK]
    (outcome,) = rig.outcomes
    assert (outcome.status, outcome.finish_reason) == (200, "stop")
    assert outcome.usage is not None
    assert outcome.usage.completion_tokens == 3


async def test_a_stream_that_lacks_its_last_chunk_only_is_complete() -> None:
    """What is missing is nothing that a client reads: it gets its end from us."""
    go_on = asyncio.Event()
    async with a_rig() as rig:
        rig.pod.plays([STREAM_HEAD + b"".join(map(chunk, chat_stream("Hi", "."))), go_on, cut])
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        await client.head()
        while not (await client.chunk()).endswith(DONE):
            pass
        go_on.set()
        assert await client.chunk() == b""
        assert ends(rig) == [AttemptStatus.OK]


async def test_a_body_lost_in_the_middle_ends_with_its_connection() -> None:
    """A promised length cannot be met: the client must see that, not a short answer."""
    go_on = asyncio.Event()
    async with a_rig() as rig:
        complete = answer_bytes({"choices": "x" * 100_000})
        rig.pod.plays([complete[:-500], go_on, cut])
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat()))
        status, headers = await client.head()
        assert status == 200
        go_on.set()
        rest = await client.reader.read()
        assert 0 < len(rest) < int(headers["content-length"])
        assert ends(rig) == [AttemptStatus.CONNECTION_RESET]


async def test_a_messages_stream_is_notified_of_its_loss_in_its_own_dialect() -> None:
    """Anthropic's clients want an event named error, and no [DONE]."""
    go_on = asyncio.Event()
    start = event({"type": "message_start"}, "message_start")
    async with a_rig() as rig:
        rig.pod.plays([STREAM_HEAD + chunk(start), go_on, cut])
        client = await rig.client()
        await client.send(request_bytes("/v1/messages", a_chat(stream=True, max_tokens=5)))
        await client.head()
        assert await client.chunk() == start
        go_on.set()
        error = await client.chunk()
        assert error.startswith(b'event: error\ndata: {"type":"error","error":{"type":"api_error"')
        assert await client.chunk() == b""


async def test_a_pod_that_falls_silent_inside_a_stream_is_given_up() -> None:
    """A frozen stream does not hold its client for ever."""
    async with a_rig(timeouts=QUICK, patience=AttemptLimits(retries=RetryTerms(max_resumes=0))) as rig:
        rig.pod.plays([STREAM_HEAD + chunk(chat_event("Hi")), asyncio.Event()])
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True))
        assert answer.is_whole
        assert answer.chunks[0] == chat_event("Hi")
        assert b'"pod_timeout"' in answer.chunks[1]
        assert ends(rig) == [AttemptStatus.TIMEOUT]


async def test_the_pod_is_notified_at_once_when_the_client_goes() -> None:
    """Before the first byte and inside a stream: its connection is closed, and nothing stays charged."""
    async with a_rig() as rig:
        scripts: list[list[Step]] = [[asyncio.Event()], [STREAM_HEAD + chunk(chat_event("Hi")), asyncio.Event()]]
        for script in scripts:
            rig.pod.plays(script)
            rig.pod.questions.clear()
            client = await rig.client()
            await client.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
            await until(lambda: rig.pod.questions)
            client.leave()
            await until(lambda: not rig.pod.writers)
            await until(lambda: not rig.front.open_requests)
            assert rig.router.ledger.is_empty()
        assert [outcome.status for outcome in rig.outcomes] == [499, 499]
        assert rig.ends == []


async def test_a_client_that_closes_its_side_has_gone() -> None:
    """A half-closed connection cannot be told from a closed one before an answer is written."""
    async with a_rig() as rig:
        rig.pod.plays([asyncio.Event()])
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat()))
        await until(lambda: rig.pod.questions)
        client.writer.write_eof()
        assert await client.is_closed()
        await until(lambda: not rig.pod.writers)


async def test_a_connection_that_the_pod_closed_meanwhile_is_replaced_silently() -> None:
    """The keep-alive race: the request is asked again on a fresh connection, and counts as one attempt."""
    async with a_rig() as rig:
        rig.pod.plays(GOOD, [cut], GOOD)
        client = await rig.client()
        assert (await client.ask(CHAT_PATH, a_chat())).status == 200
        assert (await client.ask(CHAT_PATH, a_chat())).status == 200
        assert rig.pod.connections == 2
        assert ends(rig) == [AttemptStatus.OK, AttemptStatus.OK]
        assert len(rig.outcomes[1].attempts) == 1


async def test_a_fresh_connection_that_is_lost_is_not_called_again() -> None:
    """Only a connection that has lain idle may have been closed by rights."""
    async with a_rig() as rig:
        rig.pod.plays([cut])
        assert (await rig.ask(CHAT_PATH, a_chat())).status == 502
        assert len(rig.pod.questions) == 1
        assert ends(rig) == [AttemptStatus.CONNECTION_RESET]


async def test_a_pod_that_shuts_down_silently_is_cut() -> None:
    """A SIGTERMed engine freezes its streams: those without a byte for some time are given up, others go on."""
    async with a_rig(pods=2) as rig:
        rig.pods[0].plays([STREAM_HEAD, asyncio.Event()])
        rig.pods[1].plays(GOOD_STREAM)
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        await until(lambda: rig.pods[0].questions)
        assert rig.front.pool.fail_silent(rig.pods[0].url, 3600.0) == 0
        await until(lambda: rig.front.pool.fail_silent(rig.pods[0].url, 0.0) == 1)
        answer = await client.answer()
        assert answer.is_whole
        assert ends(rig) == [AttemptStatus.CONNECTION_RESET, AttemptStatus.OK]


async def test_a_later_request_does_not_shorten_a_pods_silence() -> None:
    """However often requests are sent: what counts is the oldest that waits, or the last byte of any response."""
    async with a_rig() as rig:
        pool, url, loop = rig.front.pool, rig.pod.url, asyncio.get_running_loop()
        rig.pod.plays([asyncio.Event()])
        assert pool.silence_s(url) is None
        first, second = await rig.client(), await rig.client()
        await first.send(request_bytes(CHAT_PATH, a_chat()))
        await until(lambda: len(rig.pod.questions) == 1)
        came_s = loop.time()
        await second.send(request_bytes(CHAT_PATH, a_chat()))
        await until(lambda: len(rig.pod.questions) == 2)
        now_s, silence_s = loop.time(), pool.silence_s(url)
        assert silence_s is not None
        assert silence_s >= now_s - came_s


async def test_idle_connections_are_closed_before_the_pod_does() -> None:
    """A line that lies idle too long is not used again."""
    async with a_rig(timeouts=Timeouts(upstream_idle_s=1.0)) as rig:
        rig.pod.plays(GOOD)
        assert (await rig.ask(CHAT_PATH, a_chat())).status == 200
        assert rig.front.pool.idle_count == 1
        await until(lambda: not rig.front.pool.open_count)


async def test_a_removed_pods_connections_are_closed() -> None:
    """Nothing is kept open to a pod that the fleet does not know any more."""
    async with a_rig(timeouts=Timeouts(upstream_read_s=0.1)) as rig:
        rig.pod.plays(GOOD)
        assert (await rig.ask(CHAT_PATH, a_chat())).status == 200
        rig.router.remove_pod(rig.pod.url)
        await until(lambda: not rig.front.pool.open_count)


async def test_an_observer_that_fails_does_not_take_the_client_with_it() -> None:
    """What is wrong with us is reported and told as ours."""
    async with a_rig() as rig:
        rig.pod.plays(GOOD)

        def place(*_: object, **__: object) -> None:
            raise RuntimeError("a bug of ours")

        rig.router.place = place  # type: ignore[method-assign, assignment]
        answer = await rig.ask(CHAT_PATH, a_chat())
        assert (answer.status, answer.code) == (500, "internal_error")
        assert answer.headers["x-hearth-fault"] == "gateway"
        (fault,) = rig.faults
        assert isinstance(fault["exception"], RuntimeError)
        rig.faults.clear()


async def test_a_pod_that_stated_what_no_one_can_make_out_is_to_blame_for_its_cut() -> None:
    """What the client has of it cannot be gone on with, and the error is not ours."""
    strange = event({"id": "c", "choices": [{"index": 0, "delta": {"content": {"not": "a text"}}}]})
    async with a_rig(pods=2) as rig:
        rig.pods[0].plays([STREAM_HEAD + chunk(chat_event("Hi")) + chunk(strange), cut])
        rig.pods[1].plays(GOOD_STREAM)
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True))
        assert answer.is_whole
        assert b'"pod_lost"' in answer.body
        assert not rig.pods[1].questions
    assert rig.outcomes[0].resume_failure == "unsupported_prompt"


async def test_retries_end_where_the_budget_does() -> None:
    """However many pods there are; who has not been reached costs nothing, and one that is gone may be left."""
    broke = AttemptLimits(retries=RetryTerms(budget_burst=0, budget_ratio=0.0))
    async with a_rig(pods=3, patience=broke) as rig:
        rig.pods[0].plays([error_answer("Busy.", 503)])
        rig.pods[1].plays([STREAM_HEAD + LAST_CHUNK], GOOD_STREAM)
        rig.pods[2].plays(GOOD_STREAM)
        assert (await rig.ask(CHAT_PATH, a_chat(stream=True))).status == 503
        assert (await rig.ask(CHAT_PATH, a_chat(stream=True))).status == 200
        rig.pods[0].close_listener()
        for writer in tuple(rig.pods[0].writers):
            writer.transport.abort()
        assert (await rig.ask(CHAT_PATH, a_chat(stream=True))).status == 200
