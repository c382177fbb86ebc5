"""How thoughts, calls of tools and structured output are told: the gateway tells them apart where a stream was cut.

`ThinkingContract` is for pods that think, as with vLLM's `--reasoning-parser`; `CallingContract` is for any.
"""

import json
from typing import Any

import pytest

from tests.conformance.subject import CHAT, MESSAGES, RESPONSES, Subject
from tests.conformance.wire import Event

LONG = 60
"""Tokens; more than are thought within the budget."""

BUDGET: dict[str, Any] = {"thinking_token_budget": 12, "ignore_eos": True}
"""A model that was never trained ends its thoughts because it must; it is chat that can say so."""

QUIET: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}

TOOL = {"type": "function", "function": {"name": "switch", "parameters": SCHEMA}}

USAGE = {"include_usage": True}


def deltas_of(values: list[Any]) -> list[Any]:
    """What a chat stream says, piece by piece."""
    return [choice["delta"] for value in values if value for choice in value["choices"]]


def joined(deltas: list[Any], name: str) -> str:
    return "".join(delta.get(name) or "" for delta in deltas)


def reported(events: list[Event], name: str) -> list[Any]:
    return [event.value for event in events if event.name == name]


class ThinkingContract:
    """Tried on a pod that thinks by a test class of its own that inherits it."""

    async def test_chat_reports_thoughts_and_then_text(self, subject: Subject) -> None:
        """Each in deltas of its own; nothing is told of what ends the thoughts."""
        *values, usage, done = (await subject.stream(CHAT, tokens=LONG, stream_options=USAGE, **BUDGET)).values()
        assert done is None
        first, *deltas = deltas_of(values)
        assert first == {"role": "assistant", "content": ""}
        kinds = [tuple(delta) for delta in deltas]
        thoughts = next(index for index, kind in enumerate(kinds) if "content" in kind)
        assert thoughts > 0
        assert set(kinds[:thoughts]) == {("reasoning",)}
        # An engine that is ahead of its API server sends the last thought and the first text in one delta.
        assert set(kinds[thoughts]) <= {"content", "reasoning"}
        assert "reasoning" not in {kind for each in kinds[thoughts + 1 :] for kind in each}
        assert "think>" not in joined(deltas, "reasoning") + joined(deltas, "content")
        assert list(usage["usage"])[-1] == "completion_tokens_details"
        assert list(usage["usage"]["completion_tokens_details"]) == ["reasoning_tokens"]

    async def test_a_complete_chat_says_the_same(self, subject: Subject) -> None:
        """Thoughts stand in a field of the message."""
        prompt = subject.prompt()
        deltas = deltas_of((await subject.stream(CHAT, prompt, LONG, **BUDGET)).values())
        message = (await subject.ask(CHAT, prompt, LONG, **BUDGET))["choices"][0]["message"]
        assert list(message)[-1] == "reasoning"
        assert message["reasoning"] == joined(deltas, "reasoning")
        assert message["content"] == joined(deltas, "content")

    async def test_an_answer_that_is_cut_while_it_thinks_has_no_text(self, subject: Subject) -> None:
        """It has only thought."""
        (choice,) = (await subject.ask(CHAT, tokens=2))["choices"]
        assert choice["message"]["reasoning"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "length")

    @pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
    async def test_a_client_may_forbid_thoughts(self, subject: Subject, path: str) -> None:
        """By what it tells the template. Of streams: some parsers read whole answers without their prompt."""
        answer = (await subject.stream(path, tokens=4, **QUIET)).body
        assert not any(word in answer for word in (b'"reasoning":"', b"reasoning_text", b"thinking_delta"))

    async def test_a_client_may_hide_thoughts(self, subject: Subject) -> None:
        """They are thought and counted, and nothing is told of them."""
        prompt = subject.prompt()
        open_text = joined(deltas_of((await subject.stream(CHAT, prompt, LONG, **BUDGET)).values()), "content")
        values = (await subject.stream(CHAT, prompt, LONG, include_reasoning=False, **BUDGET)).values()
        assert joined(deltas_of(values), "reasoning") == ""
        assert joined(deltas_of(values), "content") == open_text

    async def test_messages_report_thoughts_as_a_block_that_is_signed(self, subject: Subject) -> None:
        """The first, and told as thinking."""
        events = (await subject.stream(MESSAGES, tokens=LONG)).events()
        begun = reported(events, "content_block_start")[0]
        assert (begun["index"], begun["content_block"]) == (0, {"type": "thinking", "thinking": ""})
        own = [event for event in events if event.value.get("index") == 0]
        assert [event.name for event in own[::-1][:2]] == ["content_block_stop", "content_block_delta"]
        kinds = [event.value["delta"]["type"] for event in own if event.name == "content_block_delta"]
        assert kinds[-1] == "signature_delta"
        assert set(kinds[:-1]) == {"thinking_delta"}

    async def test_responses_report_thoughts_as_an_item(self, subject: Subject) -> None:
        """The first; it is told again as a whole when it has ended, and once more at the end."""
        events = (await subject.stream(RESPONSES, tokens=LONG)).events()
        item = reported(events, "response.output_item.added")[0]["item"]
        assert (item["type"], item["summary"], item["status"]) == ("reasoning", [], "in_progress")
        assert reported(events, "response.content_part.added")[0]["part"] == {"text": "", "type": "reasoning_text"}
        stated = "".join(value["delta"] for value in reported(events, "response.reasoning_text.delta"))
        assert [value["text"] for value in reported(events, "response.reasoning_text.done")] == [stated]
        over = reported(events, "response.output_item.done")[0]["item"]
        assert (over["id"], over["status"]) == (item["id"], "completed")
        assert over["content"] == [{"text": stated, "type": "reasoning_text"}]
        last = events[-1].value["response"]["output"][0]
        assert (last["id"], last["content"]) == (over["id"], over["content"])

    async def test_the_prompt_of_one_that_thinks_is_reported(self, subject: Subject) -> None:
        """Tokenising the conversation has the template open the thoughts, or not."""
        requested = subject.request(CHAT, return_token_ids=True)
        for fields in ({}, QUIET):
            reported = (await subject.post(CHAT, requested | fields)).json()["prompt_token_ids"]
            question = {"model": subject.model, "messages": requested["messages"], **fields}
            assert (await subject.post("/tokenize", question)).json()["tokens"] == reported

    @pytest.mark.parametrize("fields", [{}, BUDGET], ids=["inside", "behind"])
    async def test_forwarded_ids_go_on_within_thoughts_or_behind_them(
        self, subject: Subject, fields: dict[str, Any]
    ) -> None:
        """The ids say where the answer stands."""
        tokens = LONG if fields else 8
        first, *values, _ = (await subject.stream(CHAT, tokens=tokens, return_token_ids=True, **fields)).values()
        ids = [each for value in values for each in value["choices"][0]["token_ids"]]
        assert len(ids) == tokens
        forwarded = {"prompt_token_ids": first["prompt_token_ids"] + ids[:-2]}
        rest = deltas_of((await subject.stream(CHAT, tokens=2, ignore_eos=True, kv_transfer_params=forwarded)).values())
        assert bool(joined(rest, "reasoning")) == (not fields)
        assert bool(joined(rest, "content")) == bool(fields)


class CallingContract:
    """Tried on a pod by a test class of its own that inherits it."""

    async def test_a_call_that_was_ordered_is_sent_in_pieces(self, subject: Subject) -> None:
        """The first has an id and the name; the others have arguments, and the call's number."""
        order: dict[str, Any] = {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "switch"}}}
        prompt = subject.prompt()
        values = (await subject.stream(CHAT, prompt, LONG, **order, **QUIET)).values()
        pieces = [call for delta in deltas_of(values) for call in delta.get("tool_calls", [])]
        first, *rest = pieces
        assert first["id"].startswith("chatcmpl-tool-")
        assert (first["type"], first["index"], first["function"]["name"]) == ("function", 0, "switch")
        assert all(list(piece) == ["index", "function"] and list(piece["function"]) == ["arguments"] for piece in rest)
        arguments = "".join(piece["function"]["arguments"] for piece in pieces)
        assert isinstance(json.loads(arguments)["on"], bool)
        (choice,) = (await subject.ask(CHAT, prompt, LONG, **order, **QUIET))["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert (call["function"], choice["finish_reason"]) == ({"name": "switch", "arguments": arguments}, "stop")
        assert call["id"] != first["id"], "each time another"

    async def test_an_ordered_call_of_a_message_is_a_block(self, subject: Subject) -> None:
        """With its arguments as JSON in pieces."""
        tool = {"name": "switch", "input_schema": SCHEMA}
        order: dict[str, Any] = {"tools": [tool], "tool_choice": {"type": "tool", "name": "switch"}}
        events = (await subject.stream(MESSAGES, tokens=LONG, **order, **QUIET)).events()
        block = reported(events, "content_block_start")[-1]["content_block"]
        assert (block["type"], block["name"], block["input"]) == ("tool_use", "switch", {})
        pieces = [value["delta"] for value in reported(events, "content_block_delta")]
        assert {piece["type"] for piece in pieces} == {"input_json_delta"}
        assert isinstance(json.loads("".join(piece["partial_json"] for piece in pieces))["on"], bool)
        assert events[-2].value["delta"]["stop_reason"] == "tool_use"

    async def test_structured_output_is_text(self, subject: Subject) -> None:
        """Nothing but its words says that it had to be so."""
        wanted = {"type": "json_schema", "json_schema": {"name": "light", "schema": SCHEMA}}
        deltas = deltas_of((await subject.stream(CHAT, tokens=LONG, response_format=wanted, **QUIET)).values())
        assert isinstance(json.loads(joined(deltas, "content"))["on"], bool)
        assert {name for delta in deltas for name in delta} <= {"role", "content"}
