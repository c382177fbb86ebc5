"""/v1/chat/completions, beyond what every pod promises (the conformance suite): what is asked for is what comes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

from simulator.faults import NO_FAULT, Fault, FaultKind
from tests.simulator.asking import LONG, MODEL, PATIENCE_S, PROFILE, Answer, Client, chat, running

CHAT = "/v1/chat/completions"

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]},
    },
}


def text_of(answer: Answer, index: int = 0) -> str:
    choices = [choice for value in answer.values if value for choice in value["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices if choice["index"] == index)


def calls_of(answer: Answer) -> list[dict[str, Any]]:
    deltas = [choice["delta"] for value in answer.values if value for choice in value["choices"]]
    return [call for delta in deltas for call in delta.get("tool_calls", [])]


async def test_any_pod_gives_the_same_answer() -> None:
    """Whatever its speed; so an answer that one began another can finish."""
    texts = []
    for seconds in (0.001, 0.1):
        async with running(profile=replace(PROFILE, step_base_s=seconds)) as (_, client):
            texts.append((await client.ask(CHAT, chat(LONG)))["choices"][0]["message"]["content"])
    assert texts[0] == texts[1]


async def test_half_an_answer_is_finished() -> None:
    """What a lost pod had said, with the last message left open, goes on word for word and ends where it would have."""
    async with running() as (_, client):
        requested = chat(LONG, max_tokens=None)
        parse_unary = (await client.ask(CHAT, requested))["choices"][0]
        text = parse_unary["message"]["content"]
        assert parse_unary["finish_reason"] == "stop"
        half = text[: len(text) // 8 * 4]
        resumed = {
            **requested,
            "messages": [*requested["messages"], {"role": "assistant", "content": half}],
            "add_generation_prompt": False,
            "continue_final_message": True,
        }
        rest = (await client.ask(CHAT, resumed))["choices"][0]
        assert (half + rest["message"]["content"], rest["finish_reason"]) == (text, "stop")
        echoed = (await client.ask(CHAT, {**resumed, "echo": True}))["choices"][0]
        assert echoed["message"]["content"] == text
        assert text_of(await client.stream(CHAT, {**resumed, "echo": True})) == text


async def test_an_answer_may_be_over_before_it_began() -> None:
    """A whole answer to be continued has nothing to follow it but its end: one token without text."""
    async with running() as (_, client):
        requested = chat(LONG, max_tokens=None)
        stated = (await client.ask(CHAT, requested))["choices"][0]["message"]["content"]
        messages = [*requested["messages"], {"role": "assistant", "content": stated}]
        over = {**requested, "messages": messages, "add_generation_prompt": False, "continue_final_message": True}
        _, end, done = (await client.stream(CHAT, over)).values
        assert (end["choices"][0]["delta"], end["choices"][0]["finish_reason"]) == ({"content": ""}, "stop")
        assert done is None


async def test_usage_of_a_stream_comes_when_requested() -> None:
    """In the last chunk, or in every one; a silent pod leaves out what was cached."""
    for tells, keys in ((True, {"prompt_tokens_details"}), (False, set[str]())):
        async with running(reports_cached_tokens=tells) as (_, client):
            parse_unary = (await client.ask(CHAT, chat(LONG)))["usage"]
            assert (parse_unary["prompt_tokens_details"] is None) is not tells
            options = {"include_usage": True, "continuous_usage_stats": True}
            *values, last, _ = (await client.stream(CHAT, chat(LONG, stream_options=options))).values
            assert [value["usage"]["completion_tokens"] for value in values] == list(range(9))
            assert last["usage"].keys() - values[0]["usage"].keys() == keys
            *_, last, _ = (await client.stream(CHAT, chat(LONG))).values
            assert "usage" not in last


async def test_the_second_turn_is_warm_to_the_end_of_the_first() -> None:
    """Prompt and answer, in whole blocks but for the last token of the answer."""
    async with running() as (_, client):
        first = await client.ask(CHAT, chat(LONG, max_tokens=40, ignore_eos=True))
        stated = first["choices"][0]["message"]["content"]
        requested = chat(LONG)
        requested["messages"] += [{"role": "assistant", "content": stated}, {"role": "user", "content": "And then?"}]
        usage = (await client.ask(CHAT, requested))["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == (first["usage"]["total_tokens"] - 1) // 16 * 16


async def test_several_answers_are_not_the_same_one() -> None:
    """Each has its index, streamed or not; the prompt is counted once."""
    async with running() as (_, client):
        parse_unary = await client.ask(CHAT, chat(n=3))
        texts = [choice["message"]["content"] for choice in parse_unary["choices"]]
        assert [choice["index"] for choice in parse_unary["choices"]] == [0, 1, 2]
        assert len(set(texts)) == 3
        assert parse_unary["usage"]["completion_tokens"] == 24
        streamed = await client.stream(CHAT, chat(n=3))
        assert [text_of(streamed, index) for index in range(3)] == texts


async def test_a_stop_string_stops() -> None:
    """The text ends before it, and the answer names it."""
    async with running() as (_, client):
        stated = (await client.ask(CHAT, chat(max_tokens=20)))["choices"][0]["message"]["content"]
        stop = stated[30:33]
        [choice] = (await client.ask(CHAT, chat(max_tokens=20, stop=[stop, "never said"])))["choices"]
        assert choice["message"]["content"] == stated[: stated.index(stop)]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
        assert text_of(await client.stream(CHAT, chat(max_tokens=20, stop=stop))) == stated[: stated.index(stop)]


async def test_a_required_tool_is_called() -> None:
    """With arguments that fit its schema, and the finish reason OpenAI has for it."""
    async with running() as (_, client):
        requested = chat(max_tokens=50, tools=[WEATHER], tool_choice="required")
        [choice] = (await client.ask(CHAT, requested))["choices"]
        [call] = choice["message"]["tool_calls"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("", "tool_calls")
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("weather", {"days": 1})
        begun, *rest = calls_of(await client.stream(CHAT, requested))
        assert begun["function"]["name"] == "weather"
        assert all(list(each) == ["index", "function"] for each in rest)
        assert "".join(each["function"]["arguments"] for each in (begun, *rest)) == call["function"]["arguments"]


async def test_a_named_tool_is_called() -> None:
    """The choice was the client's: the model only stopped."""
    async with running() as (_, client):
        named = {"type": "function", "function": {"name": "weather"}}
        [choice] = (await client.ask(CHAT, chat(max_tokens=50, tools=[WEATHER], tool_choice=named)))["choices"]
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["tool_calls"]


async def test_a_tool_no_one_offered_is_rejected() -> None:
    """Named or required without tools."""
    async with running() as (_, client):
        named = {"type": "function", "function": {"name": "dance"}}
        for requested in (chat(tools=[WEATHER], tool_choice=named), chat(tool_choice="required")):
            answer = await client.post(CHAT, requested)
            assert (answer.status, answer.json()["error"]["param"]) == (400, "tool_choice")


async def test_tools_left_to_the_model_are_not_called() -> None:
    """It says something instead; the tools are in the prompt."""
    async with running() as (_, client):
        plain, tooled = await client.ask(CHAT, chat()), await client.ask(CHAT, chat(tools=[WEATHER]))
        assert tooled["choices"][0]["message"]["content"]
        assert tooled["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]


async def test_structured_output_is_json() -> None:
    """Any object, one of a schema, or one of a list of choices."""
    schema = {"type": "object", "properties": {"days": {"type": "integer"}}}
    async with running() as (_, client):
        for fields, value in (
            ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}, {"days": 1}),
            ({"structured_outputs": {"json": schema}}, {"days": 1}),
            ({"structured_outputs": {"json": json.dumps(schema)}}, {"days": 1}),
            ({"structured_outputs": {"choice": ["7", "8"]}}, 7),
        ):
            [choice] = (await client.ask(CHAT, chat(max_tokens=50, **fields)))["choices"]
            assert json.loads(choice["message"]["content"]) == value
            assert choice["finish_reason"] == "stop"
        answer = await client.ask(CHAT, chat(max_tokens=50, response_format={"type": "json_object"}))
        assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"answer", "score"}


async def test_logprobs_stand_for_every_token() -> None:
    """The token said is the best of the top ones, and the same streamed."""
    async with running() as (_, client):
        requested = chat(logprobs=True, top_logprobs=3)
        [choice] = (await client.ask(CHAT, requested))["choices"]
        entries = choice["logprobs"]["content"]
        assert "".join(entry["token"] for entry in entries) == choice["message"]["content"]
        for entry in entries:
            tops = [top["logprob"] for top in entry["top_logprobs"]]
            assert tops == sorted(tops, reverse=True)
            assert tops[0] == entry["logprob"] <= 0.0
            assert bytes(entry["bytes"]).decode() == entry["token"]
        values = [value for value in (await client.stream(CHAT, requested)).values if value]
        streamed = [choice["logprobs"] for value in values for choice in value["choices"] if choice["logprobs"]]
        assert [entry for part in streamed for entry in part["content"]] == entries
        answer = await client.post(CHAT, chat(logprobs=True, top_logprobs=21))
        assert (answer.status, answer.json()["error"]["param"]) == (400, "logprobs")


async def test_token_ids_are_returned_on_request() -> None:
    """The prompt's in the first chunk, the answer's as they come; detokenized they are the text."""
    async with running() as (_, client):
        requested = chat(return_token_ids=True)
        parse_unary = await client.ask(CHAT, requested)
        [choice] = parse_unary["choices"]
        text = (await client.ask("/detokenize", {"model": MODEL, "tokens": choice["token_ids"]}))["prompt"]
        assert text == choice["message"]["content"]
        first, *rest = [value for value in (await client.stream(CHAT, requested)).values if value]
        assert first["prompt_token_ids"] == parse_unary["prompt_token_ids"]
        assert [token for value in rest for token in value["choices"][0]["token_ids"]] == choice["token_ids"]


async def test_images_are_detected_only_by_who_has_eyes() -> None:
    """A text model refuses them; a multimodal one counts them."""
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "http://there/x.png"}}]
    requested = chat() | {"messages": [{"role": "user", "content": parts}]}
    async with running() as (_, client):
        answer = await client.post(CHAT, requested)
        assert (answer.status, answer.json()["error"]["message"]) == (400, f"{MODEL} is not a multimodal model")
    async with running(sees_images=True) as (_, client):
        assert (await client.ask(CHAT, requested))["usage"]["prompt_tokens"] > 64


async def test_an_adapter_is_a_model_of_its_own() -> None:
    """It answers otherwise, shares no cache, and is listed under its parent."""
    async with running(adapters={"poet": "/adapters/poet"}) as (_, client):
        base = await client.ask(CHAT, chat(LONG))
        poet = await client.ask(CHAT, chat(LONG, model="poet"))
        assert poet["model"] == "poet"
        assert poet["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert poet["choices"][0]["message"]["content"] != base["choices"][0]["message"]["content"]
        cards = (await client.get("/v1/models")).json()["data"]
        assert [(card["id"], card["parent"], card["root"]) for card in cards] == [
            (MODEL, None, MODEL),
            ("poet", MODEL, "/adapters/poet"),
        ]


async def test_priorities_reorder_who_waits() -> None:
    """Lower first, on a pod that schedules by priority."""
    order: list[str] = []

    async def ask(client: Client, name: str, priority: int) -> None:
        await client.ask(CHAT, chat(priority=priority))
        order.append(name)

    async with running(profile=replace(PROFILE, max_num_seqs=1, by_priority=True)) as (pod, client):
        pod.set_fault(Fault(FaultKind.HANG))
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            for waiting, (name, priority) in enumerate((("running", 0), ("late", 5), ("early", -5))):
                group.create_task(ask(client, name, priority))
                while pod.service.in_flight <= waiting:
                    await client.get("/health")
            pod.set_fault(NO_FAULT)
    assert order == ["running", "early", "late"]
