"""Thoughts that are drawn go on at another real pod, by their tokens: at every cut, with the parsers of two models.

Those of messages as well, as the chats that they are: that both have one prompt is asked of the pod itself.

Drawn is what states a temperature and no seed; here all but the likeliest token is ruled out by `top_p`, so that
equal requests have equal answers all the same, and what was joined can be compared.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from gateway.resume.anthropic import chat_from_messages
from gateway.resume.continuation import Continuation, continuation_of
from gateway.resume.delivered import read_delivered
from gateway.resume.splice import splice_events
from gateway.resume.token_recovery import read_recovered
from routing.request import Api
from tests.gateway.resume.test_replay import events_of, hear
from tests.vllm.gateways import in_front, until
from tests.vllm.metered import metered
from tests.vllm.pods import Pod, running
from tests.vllm.test_pod_loss import drain
from tests.vllm.test_thoughts import PATIENCE_S, requests_of
from tests.vllm.thinker import build_wordy, thinking, words_of

pytestmark = pytest.mark.timeout(900, func_only=True)

MODEL = "thinker"

PATH, MESSAGES = "/v1/chat/completions", "/v1/messages"

BUDGET = 1024
"""Tokens of thoughts: the smallest budget that Anthropic's API knows."""

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tools are offered": {"tools": [TOOL]},
    "log-probabilities": {"logprobs": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "thinker"
    build_wordy(made)
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thinkers(folder: Path) -> AsyncIterator[tuple[Pod, ...]]:
    """One model, whose thoughts two parsers tell from its text."""
    plans = [thinking(folder, MODEL, parser) for parser in ("deepseek_r1", "qwen3")]
    async with running([replace(plan, flags=(*plan.flags, "--enable-scale-out")) for plan in plans]) as pods:
        yield pods


DRAWN: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tell me of the harbour and its ships."}],
    "temperature": 1.0,
    "top_p": 1e-9,
    "stream": True,
}


def asking(folder: Path, tokens: int, **more: Any) -> dict[str, Any]:
    """A third of it are thoughts."""
    return DRAWN | {
        "max_tokens": tokens,
        "thinking_token_budget": tokens // 3,
        "allowed_token_ids": words_of(folder),
        "stream_options": {"include_usage": True},
        **more,
    }


def message(tokens: int) -> dict[str, Any]:
    """So many of it are text."""
    return DRAWN | {"thinking": {"type": "enabled", "budget_tokens": BUDGET}, "max_tokens": BUDGET + tokens}


async def post(client: aiohttp.ClientSession, url: str, path: str, body: Any) -> bytes:
    async with client.post(url + path, json=body) as answer:
        reported = await answer.read()
        assert answer.status == 200, reported
        return reported


def alike(stream: bytes) -> tuple[object, ...]:
    """What a client makes of it: texts by their kinds, why it ended, and what it counts as."""
    events = events_of(stream)
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    counts = [
        (event["usage"]["prompt_tokens"], event["usage"]["completion_tokens"]) for event in events if event.get("usage")
    ]
    return hear(Api.CHAT, stream).texts, reasons, counts


def alike_message(stream: bytes) -> tuple[object, ...]:
    """The same of a message: its blocks in their order, why it ended, and what was made."""
    received, events = hear(Api.MESSAGES, stream), events_of(stream)
    reasons = [event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta"]
    return received.texts, received.once, reasons, received.usage[-1]["output_tokens"]


async def gone_on_with(
    client: aiohttp.ClientSession, url: str, body: dict[str, Any], shown: bytes, api: Api = Api.CHAT
) -> bytes:
    """All that a client is sent whose stream was cut behind this."""
    stated = read_delivered(api, shown, shown.count(b"\n\n"), withholds_usage=False)
    rest = continuation_of(json.dumps(body).encode(), stated, sequences=1)
    assert isinstance(rest, Continuation), rest
    recall = rest.request.recovery
    assert recall is not None
    prompt = await post(client, url, PATH, json.loads(recall.prompt))
    words = await post(client, url, "/tokenize", json.loads(recall.tokenize))
    recalled = read_recovered(recall, prompt, words)
    assert recalled is not None
    rest = rest.with_tokens(recalled)
    assert rest.path == PATH
    requested = json.loads(rest.request.body) | {"kv_transfer_params": {"prompt_token_ids": rest.request.prompt_ids}}
    joined = splice_events(rest.splicer(withholds_usage=False), await post(client, url, PATH, requested))
    assert joined is not None
    return stated.raw + joined


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("parser", [0, 1])
async def test_thoughts_go_on_at_every_cut(thinkers: tuple[Pod, ...], folder: Path, parser: int, way: str) -> None:
    """Inside them, beside the mark that ends them, and in the text behind: as an undisturbed run, usage and all."""
    url, body = thinkers[parser].url, asking(folder, 24, **WAYS[way])
    async with aiohttp.ClientSession() as client:
        complete = await post(client, url, PATH, body)
        events = [event + b"\n\n" for event in complete.split(b"\n\n") if event]
        kinds = {key for key, text in hear(Api.CHAT, complete).texts.items() if text}
        assert len(kinds) == 2, "it thinks and speaks"
        # Behind the role and the first thought, until nothing is missing but usage.
        for cut in range(2, len(events) - 1):
            reported = await gone_on_with(client, url, body, b"".join(events[:cut]))
            assert alike(reported) == alike(complete), cut


@pytest.mark.parametrize("parser", [0, 1])
async def test_thoughts_of_a_message_go_on(thinkers: tuple[Pod, ...], parser: int) -> None:
    """Cut early, and behind each event around the end of their block; as an undisturbed run, block by block."""
    url, body = thinkers[parser].url, message(12)
    async with aiohttp.ClientSession() as client:
        complete = await post(client, url, MESSAGES, body)
        events = [event + b"\n\n" for event in complete.split(b"\n\n") if event]
        (ended,) = [at for at, event in enumerate(events) if b"signature_delta" in event]
        assert ended > BUDGET // 2, "it thinks as long as it may"
        for cut in (4, *range(ended - 3, len(events) - 1)):
            reported = await gone_on_with(client, url, body, b"".join(events[:cut]), Api.MESSAGES)
            assert alike_message(reported) == alike_message(complete), cut


EMPTY = {"input_schema": {"type": "object"}}

SCHEMA = {"properties": {"city": {"type": "string"}}}
"""Of which it is not said that it is an object, as vLLM then takes it to be."""

TOOLS = [{"name": "weather", "description": "Now.", "input_schema": SCHEMA, "strict": True}, {"name": "clock", **EMPTY}]

TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "What is it like?"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm, ", "signature": "1"},
            {"type": "redacted_thinking", "data": "?"},
            {"type": "thinking", "thinking": "well.", "signature": "2"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bern"}},
            {"type": "tool_use", "id": "t2", "name": "clock", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "And?"},
            {"type": "tool_result", "tool_use_id": "t1", "content": "12 C"},
            {
                "type": "tool_result",
                "tool_use_id": "t2",
                "content": [{"type": "text", "text": "noon"}, {"type": "text", "text": "sharp"}],
            },
            {"type": "text", "text": "Go on."},
        ],
    },
]

SHAPES: dict[str, dict[str, Any]] = {
    "a system prompt": {"system": "Be brief.", "stop_sequences": ["END"]},
    "a system prompt of blocks": {
        "system": [{"type": "text", "text": text} for text in ("x-anthropic-billing-header: 1", "Be ", "brief.")]
    },
    "a budget": {"thinking": {"type": "enabled", "budget_tokens": BUDGET}, "top_k": 20, "cache_salt": "mine"},
    "an effort": {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
    "a format": {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object", **SCHEMA}}}},
    "tools": {"tools": TOOLS},
    "any tool": {"tools": TOOLS, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
    "one tool": {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "clock"}},
    "no tool": {"tools": TOOLS, "tool_choice": {"type": "none"}},
    "thoughts, calls and results": {"messages": TURNS, "tools": TOOLS},
    "a beginning of the answer": {"messages": [*TURNS[:1], {"role": "assistant", "content": "It is"}]},
    "words for the template": {
        "chat_template_kwargs": {"enable_thinking": True},
        "vllm_xargs": {"x": 1},
        "watermarking": False,
    },
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_message_and_its_chat_have_the_same_prompt(thinkers: tuple[Pod, ...], shape: str) -> None:
    """And all that shapes the answer: what the engine itself makes of both is the same, token by token."""
    requested = message(12) | {"thinking": None} | SHAPES[shape]
    chat = chat_from_messages(requested)
    assert chat is not None
    async with aiohttp.ClientSession() as client:
        ours = json.loads(await post(client, thinkers[0].url, f"{PATH}/render", chat))
        theirs = json.loads(await post(client, thinkers[0].url, f"{MESSAGES}/render", requested))
    assert len(theirs["token_ids"]) > 10
    for reported in (ours, theirs):  # The one is made up; the other is how usage is told.
        del reported["request_id"], reported["stream_options"]
    assert ours == theirs


CUT_AT_BYTES = 100_000
"""Of each response: behind the thoughts of the chat (190 KB in all), within those of the message (140 KB)."""


async def test_drawn_thoughts_outlive_their_pod(thinkers: tuple[Pod, ...], folder: Path) -> None:
    """Killed in the text of a chat, long behind its thoughts, and in those of a message. The victim is gone then."""
    victim, other = thinkers
    requested = [(PATH, asking(folder, 800), alike), (MESSAGES, message(100), alike_message)]
    async with (
        metered(victim.url, CUT_AT_BYTES, len(requested)) as meter,
        in_front([meter.url, other.url]) as gateway,
        aiohttp.ClientSession() as client,
    ):
        complete = [await post(client, victim.url, path, body) for path, body, _ in requested]
        drain(gateway, other)
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as streams:
            reported = [streams.create_task(post(client, gateway.url, path, body)) for path, body, _ in requested]
            await meter.all_held.wait()
            drain(gateway, other, undo=True)
            victim.kill()
            meter.cut()
        for (_, _, alike_one), one, undisturbed in zip(requested, reported, complete, strict=True):
            assert alike_one(one.result()) == alike_one(undisturbed)
        await asyncio.to_thread(until, lambda: len(requests_of(gateway)) == len(requested), "each request's line")
        assert [line.get("resumes") for line in requests_of(gateway)] == [1, 1]
