"""Callers with limits, over HTTP: what they are told, how a stream that reaches one ends, and what stays charged."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from gateway.config.models import ModelEntry
from gateway.limits.accounts import QuotaEnforcer
from gateway.relay.relay import Relay
from routing.request import Api
from tenancy.limits.usage import LimitKind
from tenancy.tenants import Quota
from tests.gateway.http.rig import CHAT_PATH, MODEL, Answer, Rig, a_chat, a_rig
from tests.gateway.http.scripted import PATIENCE_S, until
from tests.gateway.http.wire import (
    STREAM_HEAD,
    answer_bytes,
    chat_answer,
    chat_event,
    chat_stream,
    chunk,
    chunked,
    event,
)
from tests.gateway.limits.making import Hand, caller_of, quotas_of

GOOD = [answer_bytes(chat_answer())]
UNTIL_REFILLED_S = 4 * 61.0
"""Events that come in one read are charged together: up to 204 tokens, of a limit of 100 a minute."""
PRICES = {MODEL: ModelEntry(MODEL, input_cost_per_token=0.0, output_cost_per_token=1.0)}


class Kit:
    """Arguments of a rig whose one tenant has a quota, and the quotas that it makes."""

    def __init__(self, quota: Quota, *, expected: float = 10.0) -> None:
        self.clock = Hand()
        self.caller = caller_of(quota)
        self._expected = expected

    def identify(self, *_: object) -> Any:
        return self.caller

    def make(self, router: Any) -> QuotaEnforcer:
        self.quotas = quotas_of(router, self.clock, expected=self._expected, prices=PRICES)
        return self.quotas

    def rig(self) -> Any:
        return a_rig(identify=self.identify, make_quotas=self.make)

    def used(self, kind: LimitKind) -> float:
        book = self.quotas.accounts.find("search")
        assert book is not None
        return book.limit_usages[kind].counter.used

    def is_square(self) -> bool:
        """Nobody holds anything any more."""
        return all(book.open == 0 for book in self.quotas.accounts)


async def test_an_answer_says_how_limits_stand() -> None:
    """And what the engine says of the tokens is what counts in the end."""
    kit = Kit(Quota(requests_per_min=3, tokens_per_min=1000))
    async with kit.rig() as rig:
        rig.pod.plays(GOOD)
        answer = await rig.ask(CHAT_PATH, a_chat(max_tokens=20))
        assert answer.status == 200
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert answer.headers["x-ratelimit-remaining-requests"] == "2"
        assert answer.headers["x-ratelimit-limit-tokens"] == "1000"
        assert kit.used(LimitKind.TOKENS) == 45
    assert kit.is_square()


async def test_a_rejection_says_when_to_come_back() -> None:
    """In the shape that OpenAI's clients know; at that time there is room, and the pod was not bothered meanwhile."""
    kit = Kit(Quota(requests_per_min=1))
    async with kit.rig() as rig:
        rig.pod.plays(GOOD)
        assert (await rig.ask(CHAT_PATH, a_chat())).status == 200
        answer = await rig.ask(CHAT_PATH, a_chat())
        assert (answer.status, answer.code) == (429, "rate_limit_exceeded")
        assert answer.json()["error"]["type"] == "requests"
        assert "`search` has a limit of 1 requests per minute" in answer.json()["error"]["message"]
        assert answer.headers["x-hearth-reason"] == "rate_limited_requests"
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        assert "x-should-retry" not in answer.headers
        wait_s = int(answer.headers["retry-after-ms"]) / 1000
        assert 60 < wait_s < 67
        assert int(answer.headers["retry-after"]) >= wait_s
        assert answer.json()["error"]["message"].endswith(f"try again in {answer.headers['retry-after']} s.")
        kit.clock.now_s += wait_s
        assert (await rig.ask(CHAT_PATH, a_chat())).status == 200
        assert len(rig.pod.questions) == 2


async def test_what_can_never_pass_is_not_to_be_retried() -> None:
    """A prompt longer than the limit; and a budget that is spent until midnight."""
    kit = Kit(Quota(tokens_per_min=5))
    async with kit.rig() as rig:
        answer = await rig.ask(
            CHAT_PATH, a_chat(max_tokens=1) | {"messages": [{"role": "user", "content": "hi " * 40}]}
        )
        assert (answer.status, answer.json()["error"]["type"]) == (429, "tokens")
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers
    kit = Kit(Quota(budget=3.0))
    async with kit.rig() as rig:
        rig.pod.plays(GOOD)
        assert (await rig.ask(CHAT_PATH, a_chat(max_tokens=3))).status == 200
        answer = await rig.ask(CHAT_PATH, a_chat(max_tokens=3))
        assert (answer.status, answer.code) == (429, "insufficient_quota")
        assert answer.headers["x-should-retry"] == "false"
        stated = answer.json()["error"]["message"]
        assert "`search` has a budget of 3 per day, in the currency of the models' prices" in stated
        assert stated.endswith(f"try again in {answer.headers['retry-after']} s.")


async def test_a_stream_holds_its_place_until_it_ends() -> None:
    """One at a time: a second is refused while the first streams, and served once it has ended or its client left."""
    kit = Kit(Quota(parallel_requests=1))
    async with kit.rig() as rig:
        hold = asyncio.Event()
        events = chat_stream("one", "two")
        rig.pod.plays([STREAM_HEAD, chunk(events[0]), hold], [STREAM_HEAD, chunked(events)])
        first = await rig.client()
        await first.send(b"")
        asking = asyncio.create_task(first.ask(CHAT_PATH, a_chat(stream=True)))
        await until(lambda: rig.pod.questions)
        answer = await rig.ask(CHAT_PATH, a_chat())
        assert (answer.status, answer.headers["x-hearth-reason"]) == (429, "too_many_parallel_requests")
        asking.cancel()
        first.leave()
        await until(kit.is_square)
        assert (await rig.ask(CHAT_PATH, a_chat(stream=True))).status == 200
    assert kit.used(LimitKind.PARALLEL) == 0


async def test_a_client_that_leaves_pays_for_what_was_made() -> None:
    """Its prompt and the tokens that came; what was reserved beyond them is given back."""
    kit = Kit(Quota(tokens_per_min=1000, output_tokens_per_min=500), expected=300)
    async with kit.rig() as rig:
        hold = asyncio.Event()
        rig.pod.plays([STREAM_HEAD, b"".join(chunk(chat_event(f"w{n}")) for n in range(20)), hold])
        client = await rig.client()
        asking = asyncio.create_task(client.ask(CHAT_PATH, a_chat(stream=True)))
        await until(lambda: rig.pod.questions)
        assert kit.used(LimitKind.OUTPUT) == 300
        await until(lambda: asking.done() or b"w19" in rig_seen(client))
        asking.cancel()
        client.leave()
        await until(kit.is_square)
        assert kit.used(LimitKind.OUTPUT) == 20


def rig_seen(client: Any) -> bytes:
    return bytes(client.reader._buffer)


async def test_a_pod_that_fails_costs_nothing() -> None:
    """The request counts, for it was asked for; its tokens were never made."""
    kit = Kit(Quota(requests_per_min=5, tokens_per_min=1000))
    async with kit.rig() as rig:
        rig.pod.plays([answer_bytes({"error": {"message": "boom", "type": "x", "code": 500}}, 500)])
        assert (await rig.ask(CHAT_PATH, a_chat())).status == 502
        assert (kit.used(LimitKind.REQUESTS), kit.used(LimitKind.TOKENS)) == (1, 0)
    assert kit.is_square()


async def test_what_no_pod_has_observed_costs_nothing() -> None:
    """Not even the request: it was refused before anybody did anything for it."""
    kit = Kit(Quota(requests_per_min=5, tokens_per_min=1000))
    async with kit.rig() as rig:
        answer = await rig.ask(CHAT_PATH, a_chat() | {"model": "unheard-of"})
        assert answer.status == 404
        assert (kit.used(LimitKind.REQUESTS), kit.used(LimitKind.TOKENS)) == (0, 0)
    assert kit.is_square()


# -- streams that a limit ends -------------------------------------------------------------------------------------


def endless(api: Api, count: int) -> list[bytes]:
    """A stream with many more tokens than anybody may have."""
    match api:
        case Api.CHAT:
            return [chat_event(f"w{n}") for n in range(count)]
        case Api.COMPLETIONS:
            reported = {"id": "cmpl-x", "object": "text_completion", "created": 1, "model": MODEL}
            return [
                event(reported | {"choices": [{"index": 0, "text": "w", "finish_reason": None}]}) for _ in range(count)
            ]
        case Api.MESSAGES:
            return [*MESSAGE_BEGINS, *(MESSAGE_DELTA for _ in range(count))]
        case _:
            return [*RESPONSE_BEGINS, *map(response_delta, range(4, count + 4))]


def named(reported: dict[str, Any]) -> bytes:
    return event(reported, reported["type"])


MESSAGE_BEGINS = [
    named(
        {
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "content": [],
                "model": MODEL,
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {"input_tokens": 5, "output_tokens": 0},
            },
        }
    ),
    named({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
]
MESSAGE_DELTA = named({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "w"}})

RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "in_progress",
    "model": MODEL,
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
ITEM = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
PART = {"type": "output_text", "text": "", "annotations": []}
AT = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
RESPONSE_BEGINS = [
    named({"type": "response.created", "sequence_number": 0, "response": RESPONSE}),
    named({"type": "response.in_progress", "sequence_number": 1, "response": RESPONSE}),
    named({"type": "response.output_item.added", "sequence_number": 2, "output_index": 0, "item": ITEM}),
    named({"type": "response.content_part.added", "sequence_number": 3, **AT, "part": PART}),
]


def response_delta(number: int) -> bytes:
    reported = {"type": "response.output_text.delta", "sequence_number": number, **AT, "delta": "w", "logprobs": []}
    return named(reported)


PATHS = {
    Api.CHAT: ("/v1/chat/completions", a_chat(stream=True, stream_options={"include_usage": True})),
    Api.COMPLETIONS: ("/v1/completions", {"model": MODEL, "prompt": "hi", "stream": True, "max_tokens": 900}),
    Api.MESSAGES: (
        "/v1/messages",
        {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 900},
    ),
    Api.RESPONSES: ("/v1/responses", {"model": MODEL, "input": "hi", "stream": True}),
}


async def _cut(api: Api, kit: Kit) -> tuple[Answer, Rig]:
    path, body = PATHS[api]
    async with kit.rig() as rig:
        hold = asyncio.Event()
        rig.pod.plays([STREAM_HEAD, *map(chunk, endless(api, 200)), hold])
        answer = await rig.ask(path, body)
        await until(lambda: not rig.pod.writers)
        assert kit.is_square()
        return answer, rig


@pytest.mark.parametrize("api", list(PATHS))
async def test_a_stream_that_has_used_up_a_limit_ends_as_if_it_were_too_long(api: Api) -> None:
    """Well framed and with a reason, in each dialect; the pod is told to stop, and what was made is charged."""
    kit = Kit(Quota(output_tokens_per_min=100))
    answer, rig = await _cut(api, kit)
    assert answer.is_whole
    assert answer.status == 200
    assert b'"hearth_reason":"rate_limited_tokens"' in answer.body
    [outcome] = rig.outcomes
    assert outcome.finish_reason == "length"
    assert outcome.error == "ended by a limit: rate_limited_tokens"
    assert outcome.usage is not None
    # Events that came in one read are passed on together, and all of them are charged.
    assert 100 <= outcome.usage.completion_tokens == kit.used(LimitKind.OUTPUT) <= 204
    assert kit.quotas.cut == {("search", LimitKind.OUTPUT): 1}
    reported = [json.loads(line[5:]) for line in answer.body.splitlines() if line.startswith(b"data: {")]
    match api:
        case Api.CHAT:
            assert reported[-2]["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}]
            assert reported[-1]["usage"]["completion_tokens"] == kit.used(LimitKind.OUTPUT)
            assert (reported[-2]["id"], reported[-2]["model"]) == ("chatcmpl-x", MODEL)
            assert answer.body.endswith(b"data: [DONE]\n\n")
        case Api.COMPLETIONS:
            assert reported[-1]["choices"][0]["finish_reason"] == "length"
            assert "usage" not in reported[-1]
        case Api.MESSAGES:
            assert [each["type"] for each in reported[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
            assert reported[-2]["delta"]["stop_reason"] == "max_tokens"
        case _:
            assert [each["type"].removeprefix("response.") for each in reported[-4:]] == [
                *("output_text.done", "content_part.done", "output_item.done", "incomplete")
            ]
            assert [each["sequence_number"] for each in reported] == list(range(len(reported)))
            assert reported[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
            assert reported[-1]["response"]["output"][0]["content"][0]["text"] == "w" * (len(reported) - 8)


async def test_a_block_whose_end_has_come_with_the_last_update_is_closed_once() -> None:
    """Its pod has told its end, the client has not been: it waits for what follows, which is ours."""
    kit, stop = Kit(Quota(output_tokens_per_min=100)), named({"type": "content_block_stop", "index": 0})
    path, body = PATHS[Api.MESSAGES]
    async with kit.rig() as rig:
        words = [*MESSAGE_BEGINS, *([MESSAGE_DELTA] * 300), stop]
        rig.pod.plays([STREAM_HEAD + chunk(b"".join(words)), asyncio.Event()])
        answer = await rig.ask(path, body)
        assert answer.is_whole
        assert b'"hearth_reason"' in answer.body
        assert answer.body.count(b'"content_block_stop"') == answer.body.count(b'"message_delta"') == 1


async def test_a_spent_budget_ends_a_stream_too() -> None:
    """With its own reason."""
    answer, _ = await _cut(Api.CHAT, Kit(Quota(budget=50.0)))
    assert b'"hearth_reason":"budget_exhausted"' in answer.body


async def test_many_events_in_one_read_end_at_one_place() -> None:
    """What comes behind the end in the same read goes nowhere, and the connection stays good for the next request."""
    kit = Kit(Quota(output_tokens_per_min=100))
    async with kit.rig() as rig:
        rig.pod.plays([STREAM_HEAD + b"".join(map(chunk, endless(Api.CHAT, 400)))], GOOD)
        client = await rig.client()
        answer = await client.ask(CHAT_PATH, a_chat(stream=True))
        assert answer.is_whole
        assert answer.body.count(b"[DONE]") == answer.body.count(b'"length"') == 1
        assert answer.body.endswith(b"data: [DONE]\n\n")
        kit.clock.now_s += 4 * 61  # It got 400 tokens of 100 a minute, and pays for all of them.
        assert (await client.ask(CHAT_PATH, a_chat())).status == 200


async def test_the_clients_that_people_use_take_it_for_an_answer() -> None:
    """OpenAI's and Anthropic's own, which raise on what is not well formed."""
    kit = Kit(Quota(output_tokens_per_min=100))
    async with kit.rig() as rig:
        hold = asyncio.Event()
        base = "http://{}:{}".format(*rig.server.sockets[0].getsockname()[:2])
        openai = AsyncOpenAI(base_url=f"{base}/v1", api_key="k", max_retries=0, timeout=PATIENCE_S)
        anthropic = AsyncAnthropic(base_url=base, api_key="k", max_retries=0, timeout=PATIENCE_S)
        async with openai, anthropic:
            rig.pod.plays([STREAM_HEAD, *map(chunk, endless(Api.CHAT, 200)), hold])
            chat = await openai.chat.completions.create(model=MODEL, messages=[], stream=True)
            assert [each.choices[0].finish_reason async for each in chat if each.choices][-1] == "length"
            await until(lambda: len(rig.outcomes) == 1)
            kit.clock.now_s += UNTIL_REFILLED_S
            rig.pod.plays([STREAM_HEAD, *map(chunk, endless(Api.RESPONSES, 200)), hold])
            response = await openai.responses.create(model=MODEL, input="hi", stream=True)
            assert [each.type async for each in response][-1] == "response.incomplete"
            await until(lambda: len(rig.outcomes) == 2)
            kit.clock.now_s += UNTIL_REFILLED_S
            rig.pod.plays([STREAM_HEAD, *map(chunk, endless(Api.MESSAGES, 200)), hold])
            requested: Any = {"model": MODEL, "max_tokens": 900, "messages": [{"role": "user", "content": "hi"}]}
            async with anthropic.messages.stream(**requested) as stream:
                message = await stream.get_final_message()
            assert message.stop_reason == "max_tokens"


async def test_who_has_no_limit_on_output_is_not_counted() -> None:
    """The stream goes to the client's transport as it always does."""
    kit = Kit(Quota(requests_per_min=5))
    async with kit.rig() as rig:
        rig.pod.plays([STREAM_HEAD, chunked(chat_stream(*"abc"))])
        answer = await rig.ask(CHAT_PATH, a_chat(stream=True))
        assert answer.status == 200
        assert b"hearth_reason" not in answer.body


async def test_a_stream_that_was_counted_leaves_nothing_to_collect() -> None:
    """With it would stay all that was kept of its answer, until somebody collects."""
    kit = Kit(Quota(tokens_per_min=1000))
    gc.collect()
    gc.disable()
    try:
        async with kit.rig() as rig:
            rig.pod.plays([STREAM_HEAD, chunked(chat_stream("Hi", " there"))])
            assert (await rig.ask(CHAT_PATH, a_chat(stream=True))).is_whole
            await until(lambda: not rig.front.open_requests)
            await asyncio.sleep(0)
            assert not any(isinstance(each, Relay) for each in gc.get_objects())
    finally:
        gc.enable()


async def test_fetching_a_stored_response_counts_as_a_request_and_takes_no_tokens() -> None:
    """Each leaves an outcome, the one beyond the limit is rejected with 429, and the tokens are charged once."""
    completed = {
        "type": "response.completed",
        "response": {"id": "resp_1", "usage": {"input_tokens": 7, "output_tokens": 5, "total_tokens": 12}},
    }
    kit = Kit(Quota(requests_per_min=3, tokens_per_min=1000))
    async with kit.rig() as rig:
        rig.pod.plays(
            [STREAM_HEAD + chunked([event(completed, "response.completed")])], [answer_bytes({"id": "resp_1"})]
        )
        client = await rig.client()
        requested = {"model": MODEL, "input": "Hi", "stream": True}
        assert (await client.ask("/v1/responses", requested)).status == 200
        used = kit.used(LimitKind.TOKENS)
        for status in (200, 200, 429, 429):
            assert (await client.ask("/v1/responses/resp_1", method="GET")).status == status
        assert kit.used(LimitKind.TOKENS) == used
        assert kit.used(LimitKind.REQUESTS) == 3
        assert len(rig.pod.questions) == 3
        assert [outcome.status for outcome in rig.outcomes] == [200, 200, 200, 429, 429]
        assert kit.is_square()
