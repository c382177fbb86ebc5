"""A stream that is cut, byte by byte: who is asked for the rest and how, who is not, and what is left over of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.config.limits import Limits
from gateway.pipeline.attempt import AttemptStatus, ResumeBlocker
from gateway.pipeline.record import Outcome
from routing.reading import read_usage
from routing.request import Api
from tenancy.limits.usage import LimitKind
from tenancy.tenants import Caller, Quota, Tenant
from tests.gateway.http.rig import CHAT_PATH, Rig, a_chat, a_rig, request_bytes
from tests.gateway.http.scripted import Step, close, cut, until
from tests.gateway.http.test_limited import Kit
from tests.gateway.http.wire import (
    DONE,
    STREAM_HEAD,
    answer_bytes,
    chat_answer,
    chat_event,
    chunk,
    chunked,
    error_answer,
    event,
)

BEGUN = b"".join(map(chunk, (chat_event("Once"), chat_event(" upon"))))

ROLE = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}


def continuation(*words: str, prompt_tokens: int = 9) -> list[Step]:
    """What another pod says, under an id of its own."""
    head = {"id": "chatcmpl-y", "object": "chat.completion.chunk", "created": 2, "model": "tiny"}
    made = len(words)
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": made, "total_tokens": prompt_tokens + made}
    ends = [*([None] * (made - 1)), "stop"]
    stated = [chat_event(word, end, id="chatcmpl-y") for word, end in zip(words, ends, strict=True)]
    events = [event(head | {"choices": [ROLE]}), *stated, event(head | {"choices": [], "usage": usage}), DONE]
    return [STREAM_HEAD + chunked(events)]


def text_of(body: bytes) -> str:
    reported = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    assert {each["id"] for each in reported} == {"chatcmpl-x"}, "one answer has one id"
    return "".join(choice["delta"].get("content", "") for each in reported for choice in each["choices"])


def ends(rig: Rig) -> list[AttemptStatus]:
    return [end for _, end in rig.ends]


@pytest.mark.parametrize("loss", [cut, close])
async def test_another_pod_goes_on(loss: Any) -> None:
    """With what was said as its last message and what is left of the limit; its own beginning is not told."""
    async with a_rig(pods=2) as rig:
        rig.pods[0].plays([STREAM_HEAD + BEGUN, loss])
        rig.pods[1].plays(continuation(" a", " time"))
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True, max_tokens=10))
        assert answer.is_whole
        assert text_of(answer.body) == "Once upon a time"
        assert (answer.body.count(DONE), answer.body.count(b'"role"'), answer.body.count(b'"usage"')) == (1, 0, 0)
        requested = rig.pods[1].questions[0].json()
        assert requested["messages"][-1] == {"role": "assistant", "content": "Once upon"}
        assert requested["max_tokens"] == 8
        assert ends(rig) == [AttemptStatus.CONNECTION_RESET, AttemptStatus.OK]
    (outcome,) = rig.outcomes
    assert (outcome.status, outcome.resumes, outcome.resume_failure, outcome.wasted_tokens) == (200, 1, None, 9)
    assert outcome.usage is not None
    assert (outcome.usage.prompt_tokens, outcome.usage.completion_tokens) == (7, 4)
    assert outcome.finish_reason == "stop"


async def test_events_that_went_the_short_way_are_counted() -> None:
    """Of most only the text is kept; the limit is lowered by all of them."""
    words = [f" w{number}" for number in range(40)]
    go_on = [asyncio.Event() for _ in words]
    steps: list[Step] = [STREAM_HEAD]
    for word, event_ in zip(words, go_on, strict=True):
        steps += [chunk(chat_event(word)), event_]
    async with a_rig(pods=2) as rig:
        rig.pods[0].plays([*steps, cut])
        rig.pods[1].plays(continuation(" end"))
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True, max_tokens=100)))
        await client.head()
        for event_ in go_on:
            await client.chunk()
            event_.set()
        while await client.chunk():
            pass
        requested = rig.pods[1].questions[0].json()
        assert requested["messages"][-1]["content"] == "".join(words)
        assert requested["max_tokens"] == 60


async def test_who_cannot_be_reached_is_not_the_last() -> None:
    """The rest is asked for until somebody gives it; it stays what it is."""
    async with a_rig(pods=3) as rig:
        rig.pods[0].plays([STREAM_HEAD + BEGUN, cut])
        rig.pods[1].close_listener()
        rig.pods[2].plays(continuation(" a", " time"))
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True))
        assert text_of(answer.body) == "Once upon a time"
        assert ends(rig) == [AttemptStatus.CONNECTION_RESET, AttemptStatus.UNREACHABLE, AttemptStatus.OK]
    assert (rig.outcomes[0].resumes, len(rig.outcomes[0].attempts)) == (1, 3)


async def test_where_no_other_is_left_the_same_pod_goes_on() -> None:
    """A connection can break while its pod lives."""
    async with a_rig() as rig:
        rig.pod.plays([STREAM_HEAD + BEGUN, cut], continuation(" a", " time"))
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True))
        assert text_of(answer.body) == "Once upon a time"


async def test_a_pod_that_calls_the_rest_wrong_ends_it() -> None:
    """Others would say the same; the client hears of its loss, and no pod is thought ill of for its no."""
    async with a_rig(pods=2) as rig:
        rig.pods[0].plays([STREAM_HEAD + BEGUN, cut])
        rig.pods[1].plays([error_answer("The context is full.", 400)])
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True))
        assert answer.is_whole
        assert b'"pod_lost"' in answer.body
        assert answer.body.endswith(DONE)
        assert ends(rig) == [AttemptStatus.CONNECTION_RESET, AttemptStatus.CONTINUATION_REJECTED]
        assert not AttemptStatus.CONTINUATION_REJECTED.is_pod_failure
    assert rig.outcomes[0].resume_failure is ResumeBlocker.UPSTREAM_REJECTED


async def test_a_tenant_may_want_none_of_it() -> None:
    """Then its stream ends with the error, and nothing of its request is kept."""
    async with a_rig(pods=2, identify=lambda *_: Caller(Tenant("plain", resumes=False))) as rig:
        rig.pods[0].plays([STREAM_HEAD + BEGUN, cut])
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True))
        assert b'"pod_lost"' in answer.body
        assert not rig.pods[1].questions
    assert rig.outcomes[0].resume_failure is ResumeBlocker.DISABLED


@pytest.mark.parametrize(
    "limits",
    [Limits(max_replay_body_bytes=20), Limits(max_total_replay_body_bytes=20), Limits(max_recorded_response_bytes=20)],
)
async def test_what_is_too_large_to_be_kept_is_not_gone_on_with(limits: Limits) -> None:
    """Memory is bounded, for each and for all; the stream itself flows as any."""
    async with a_rig(pods=2, limits=limits) as rig:
        rig.pods[0].plays([STREAM_HEAD + BEGUN, cut])
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True))
        assert b'"pod_lost"' in answer.body
        assert not rig.pods[1].questions
    assert rig.outcomes[0].resume_failure is ResumeBlocker.BUFFER_EXCEEDED


async def test_limits_count_on_over_the_cut_and_once() -> None:
    """What is charged is what the client was told."""
    kit = Kit(Quota(output_tokens_per_min=1000))
    async with a_rig(pods=2, identify=kit.identify, make_quotas=kit.make) as rig:
        rig.pods[0].plays([STREAM_HEAD + BEGUN, cut])
        rig.pods[1].plays(continuation(" a", " time"))
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True, stream_options={"include_usage": True}))
        assert text_of(answer.body) == "Once upon a time"
        (reported,) = [line for line in answer.body.splitlines() if b'"usage"' in line]
        usage = read_usage(Api.CHAT, reported.removeprefix(b"data: "))
        assert usage is not None
        assert usage.completion_tokens == kit.used(LimitKind.OUTPUT) == 4


async def test_a_client_that_leaves_while_another_pod_goes_on_leaves_nothing() -> None:
    """The pod is told at once, and the ledger is empty."""
    async with a_rig(pods=2) as rig:
        rig.pods[0].plays([STREAM_HEAD + BEGUN, cut])
        rig.pods[1].plays([STREAM_HEAD, asyncio.Event()])
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        await until(lambda: rig.pods[1].questions)
        client.leave()
        await until(lambda: not rig.pods[1].writers)
        await until(lambda: rig.outcomes)
        assert rig.router.ledger.is_empty()
    assert rig.outcomes[0].status == 499


async def test_a_pod_that_answers_a_stream_in_one_piece_does_not_go_on() -> None:
    """Its answer cannot be joined to events; the next pod is asked."""
    async with a_rig(pods=3) as rig:
        rig.pods[0].plays([STREAM_HEAD + BEGUN, cut])
        rig.pods[1].plays([answer_bytes(chat_answer())])
        rig.pods[2].plays(continuation(" a", " time"))
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True))
        assert text_of(answer.body) == "Once upon a time"
        assert ends(rig) == [AttemptStatus.CONNECTION_RESET, AttemptStatus.INVALID_RESPONSE, AttemptStatus.OK]


def thinking(*thoughts: str, name: str = "chatcmpl-y") -> list[bytes]:
    """Events of thoughts; of a pod that is asked for all of it."""
    head = {"id": name, "object": "chat.completion.chunk", "created": 2, "model": "tiny"}
    reported = [{"index": 0, "delta": {"reasoning": thought}, "finish_reason": None} for thought in thoughts]
    return [event(head | {"choices": [choice]}) for choice in (ROLE, *reported)]


ENDING = [chat_event(" so.", "stop", id="chatcmpl-y"), DONE]

GREEDY: dict[str, Any] = {"stream": True, "temperature": 0}

THOUGHT = STREAM_HEAD + b"".join(map(chunk, thinking("Hm", ", well", name="chatcmpl-x")))


def prefilled_again(outcome: Outcome) -> int:
    """What pods that tell no usage were foretold to compute of the prompt, but for the first."""
    again = outcome.attempts[1:]
    return sum(attempt.predicted_input_tokens - attempt.predicted_cached_input_tokens for attempt in again)


async def test_thoughts_are_requested_again_where_they_are_the_same() -> None:
    """The same body; what was said is passed over, the rest is joined, and what it cost is counted."""
    async with a_rig(pods=2) as rig:
        rig.pods[0].plays([THOUGHT, cut])
        rig.pods[1].plays([STREAM_HEAD + chunked([*thinking("Hm", ", well", ", then"), *ENDING])])
        answer = await rig.ask(CHAT_PATH, a_chat(**GREEDY))
        assert answer.is_whole
        assert text_of(answer.body) == " so."
        reported = [json.loads(line[6:]) for line in answer.body.splitlines() if line.startswith(b"data: {")]
        thoughts = [choice["delta"].get("reasoning") for each in reported for choice in each["choices"]]
        assert [thought for thought in thoughts if thought] == ["Hm", ", well", ", then"]
        assert (answer.body.count(DONE), answer.body.count(b'"role"')) == (1, 1)
        first, again = (json.loads(pod.questions[0].body) for pod in rig.pods)
        assert first == again
    (outcome,) = rig.outcomes
    assert (outcome.status, outcome.resumes, outcome.resume_failure) == (200, 1, None)
    assert outcome.wasted_tokens == prefilled_again(outcome) + 2


@pytest.mark.parametrize("is_ending", [False, True])
async def test_another_answer_than_was_reported_ends_the_stream(is_ending: bool) -> None:
    """Also where its last words are there already: they are those of another answer."""
    async with a_rig(pods=3) as rig:
        rig.pods[0].plays([THOUGHT, cut])
        others = [*thinking("Hm", ", no"), *(ENDING if is_ending else ())]
        rig.pods[1].plays([STREAM_HEAD + b"".join(map(chunk, others)), *(() if is_ending else (asyncio.Event(),))])
        answer = await rig.ask(CHAT_PATH, a_chat(**GREEDY))
        assert b'"pod_lost"' in answer.body
        assert answer.body.endswith(DONE)
        assert b", no" not in answer.body
        assert not rig.pods[2].questions
        assert ends(rig) == [AttemptStatus.CONNECTION_RESET, AttemptStatus.REPLAY_MISMATCH]
        assert not AttemptStatus.REPLAY_MISMATCH.is_pod_failure
        await until(lambda: not rig.pods[1].writers)
        assert rig.router.ledger.is_empty()
    (outcome,) = rig.outcomes
    assert (outcome.resumes, outcome.resume_failure) == (0, ResumeBlocker.REPLAY_MISMATCH)
    assert outcome.wasted_tokens == prefilled_again(outcome) + 2


async def test_a_pod_that_is_lost_while_it_says_it_again_is_followed_by_another() -> None:
    """Nothing was told twice, and nothing is lost by it but time."""
    async with a_rig(pods=3) as rig:
        rig.pods[0].plays([THOUGHT, cut])
        rig.pods[1].plays([STREAM_HEAD + b"".join(map(chunk, thinking("Hm"))), cut])
        rig.pods[2].plays([STREAM_HEAD + chunked([*thinking("Hm, ", "well"), *ENDING])])
        answer = await rig.ask(CHAT_PATH, a_chat(**GREEDY))
        assert text_of(answer.body) == " so."
        assert ends(rig) == [AttemptStatus.CONNECTION_RESET, AttemptStatus.CONNECTION_RESET, AttemptStatus.OK]
    (outcome,) = rig.outcomes
    assert (outcome.resumes, outcome.resume_failure) == (1, None)
    assert outcome.wasted_tokens == prefilled_again(outcome) + 3


async def test_a_client_that_leaves_while_it_is_replayed_leaves_nothing() -> None:
    """The pod is told at once, and the ledger is empty."""
    async with a_rig(pods=2) as rig:
        rig.pods[0].plays([THOUGHT, cut])
        rig.pods[1].plays([STREAM_HEAD + b"".join(map(chunk, thinking("Hm"))), asyncio.Event()])
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(**GREEDY)))
        await until(lambda: rig.pods[1].questions)
        client.leave()
        await until(lambda: not rig.pods[1].writers)
        await until(lambda: rig.outcomes)
        assert rig.router.ledger.is_empty()
    assert rig.outcomes[0].status == 499


async def test_limits_do_not_count_what_is_replayed() -> None:
    """A client pays for what it was told."""
    kit = Kit(Quota(output_tokens_per_min=1000))
    usage = {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11}
    head = {"id": "chatcmpl-y", "object": "chat.completion.chunk", "created": 2, "model": "tiny"}
    async with a_rig(pods=2, identify=kit.identify, make_quotas=kit.make) as rig:
        rig.pods[0].plays([THOUGHT, cut])
        end = [ENDING[0], event(head | {"choices": [], "usage": usage}), DONE]
        rig.pods[1].plays([STREAM_HEAD + chunked([*thinking("Hm", ", well", ", then"), *end])])
        answer = await rig.ask(CHAT_PATH, a_chat(**GREEDY))
        assert text_of(answer.body) == " so."
        assert kit.used(LimitKind.OUTPUT) == 4


async def test_thoughts_that_are_drawn_are_not_requested_again() -> None:
    """At any other temperature the next pod thinks something else: it is asked for tokens alone, and tells none."""
    async with a_rig(pods=2) as rig:
        rig.pods[0].plays([THOUGHT, cut])
        rig.pods[1].plays([complete({"choices": []})], [complete({"tokens": []})])
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True, temperature=0.6))
        assert b'"pod_lost"' in answer.body
        assert [each.path for each in rig.pods[1].questions] == [CHAT_PATH, "/tokenize"]
        assert rig.pods[1].questions[0].json()["max_tokens"] == 1
    assert rig.outcomes[0].resume_failure is ResumeBlocker.UPSTREAM_REJECTED


def complete(reported: dict[str, Any]) -> bytes:
    """An answer in one piece."""
    body = json.dumps(reported).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def test_thoughts_that_were_hidden_are_not_gone_on_with() -> None:
    """Nobody knows all of them."""
    async with a_rig(pods=2) as rig:
        rig.pods[0].plays([THOUGHT, cut])
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True, temperature=0.6, include_reasoning=False))
        assert b'"pod_lost"' in answer.body
        assert not rig.pods[1].questions
    assert rig.outcomes[0].resume_failure is ResumeBlocker.REASONING


@pytest.mark.parametrize("leaves_first", [True, False])
async def test_a_client_that_leaves_as_its_stream_is_cut_leaves_nothing(leaves_first: bool) -> None:
    """Whichever is heard of first, in the same tick or one after the other."""
    go_on = asyncio.Event()
    async with a_rig(pods=2) as rig:
        rig.pods[0].plays([THOUGHT, go_on, cut])
        rig.pods[1].plays([STREAM_HEAD + b"".join(map(chunk, thinking("Hm"))), asyncio.Event()])
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(**GREEDY)))
        await client.head()
        await client.chunk()
        for step in (client.leave, go_on.set) if leaves_first else (go_on.set, client.leave):
            step()
        await until(lambda: rig.outcomes)
        await until(lambda: not any(pod.writers for pod in rig.pods))
        assert rig.router.ledger.is_empty()
    assert rig.outcomes[0].status == 499
