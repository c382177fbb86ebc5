"""How the rest of an answer is asked for, and what of it cannot be asked for truthfully."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.pipeline.attempt import ResumeBlocker
from gateway.resume.continuation_request import ContinuationRequest, build_request
from gateway.resume.delivered import DeliveredOutput, content_of, read_delivered
from routing.request import Api

MESSAGES = [{"role": "user", "content": "Tell."}]


def stated(api: Api, text: str = "Once upon", tokens: int = 2, **more: Any) -> DeliveredOutput:
    return DeliveredOutput(api, b"", (), tokens, text=text, tokens=tokens, **more)


def requested(
    api: Api, body: dict[str, Any], before: DeliveredOutput | None = None, sequences: int = 1
) -> ContinuationRequest | ResumeBlocker:
    return build_request(
        api, json.dumps({"model": "tiny", "stream": True} | body).encode(), before or stated(api), sequences
    )


def body_of(asking: ContinuationRequest | ResumeBlocker) -> dict[str, Any]:
    assert isinstance(asking, ContinuationRequest), asking
    read: dict[str, Any] = json.loads(asking.body)
    return read


def test_a_chat_goes_on_with_its_last_message() -> None:
    """Everything else is asked as it was; limits are what is left of them."""
    more = {"max_tokens": 10, "max_completion_tokens": 12, "min_tokens": 1, "seed": 7, "temperature": 0.5}
    body = body_of(requested(Api.CHAT, {"messages": MESSAGES} | more))
    assert body["messages"] == [*MESSAGES, {"role": "assistant", "content": "Once upon"}]
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert (body["max_tokens"], body["max_completion_tokens"], body["min_tokens"]) == (8, 10, 0)
    assert (body["seed"], body["temperature"]) == (7, 0.5)


def test_an_answer_that_a_client_began_goes_on_in_its_message() -> None:
    """It is one message, whoever wrote its beginning."""
    begun = [*MESSAGES, {"role": "assistant", "content": "So: "}]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    assert body_of(requested(Api.CHAT, {"messages": begun} | more))["messages"] == [
        *MESSAGES,
        {"role": "assistant", "content": "So: Once upon"},
    ]


def test_an_answer_of_blanks_begins_again() -> None:
    """Templates lose it; what the next pod says first is taken for what was said."""
    asking = requested(Api.CHAT, {"messages": MESSAGES, "max_tokens": 10}, stated(Api.CHAT, "\n", 1))
    assert isinstance(asking, ContinuationRequest)
    assert asking.repeated_text == "\n"
    assert (body_of(asking)["messages"], body_of(asking)["max_tokens"]) == (MESSAGES, 10)


def test_nothing_left_becomes_one_token() -> None:
    """No engine takes zero; nobody hears what it says."""
    asking = requested(Api.CHAT, {"messages": MESSAGES, "max_tokens": 2, "min_tokens": 2})
    assert isinstance(asking, ContinuationRequest)
    assert asking.is_exhausted
    assert (body_of(asking)["max_tokens"], body_of(asking)["min_tokens"]) == (1, 0)


@pytest.mark.parametrize(
    ("prompt", "more", "wanted"),
    [
        ("Tell: ", {}, "Tell: Once upon"),
        (["Tell: "], {}, "Tell: Once upon"),
        ("Tell: ", {"token_ids": (5, 6), "prompt_ids": (1, 2)}, [1, 2, 5, 6]),
        ([1, 2], {"token_ids": (5, 6), "prompt_ids": (1, 2)}, [1, 2, 5, 6]),
    ],
)
def test_a_completion_goes_on_behind_its_prompt(prompt: Any, more: dict[str, Any], wanted: Any) -> None:
    """By the tokens themselves where they were told, else by their text; the usual length is said aloud."""
    body = body_of(requested(Api.COMPLETIONS, {"prompt": prompt}, stated(Api.COMPLETIONS, **more)))
    assert (body["prompt"], body["max_tokens"]) == (wanted, 14)


def test_with_stop_strings_a_completion_goes_on_by_text() -> None:
    """Engines hold text back that may be the beginning of one: their tokens are ahead of it."""
    before = stated(Api.COMPLETIONS, token_ids=(5, 6), prompt_ids=(1, 2))
    assert (
        body_of(requested(Api.COMPLETIONS, {"prompt": "Tell: ", "stop": ["END"]}, before))["prompt"]
        == "Tell: Once upon"
    )


def test_a_message_is_requested_as_the_chat_that_it_is() -> None:
    """System, texts, calls and their results, as vLLM puts them over."""
    content = [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "12 C"}]}]
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bern"}}
    tool = {"name": "weather", "description": "Now.", "input_schema": {"type": "object"}}
    turns = [*MESSAGES, {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, use]}]
    fields = {"system": [{"type": "text", "text": "Be brief."}], "max_tokens": 50, "stop_sequences": ["END"]}
    messages = [*turns, {"role": "user", "content": content}]
    asking = requested(Api.MESSAGES, {"messages": messages, "tools": [tool]} | fields)
    body = body_of(asking)
    assert isinstance(asking, ContinuationRequest)
    assert asking.api is Api.CHAT
    function = {"name": "weather", "arguments": '{"city": "Bern"}'}
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Tell."},
        {
            "role": "assistant",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
            "content": "Let me see.",
        },
        {"role": "tool", "tool_call_id": "t1", "content": "12 C"},
        {"role": "assistant", "content": "Once upon"},
    ]
    assert (body["max_completion_tokens"], body["stop"], body["tool_choice"]) == (48, ["END"], "auto")
    assert body["tools"][0]["function"]["parameters"] == {"type": "object"}


def test_a_response_goes_on_with_its_item() -> None:
    """As vLLM knows it: an item that is in progress is gone on with."""
    item = {"id": "msg_1", "type": "message"}
    before = DeliveredOutput(
        Api.RESPONSES, b"", ({"type": "response.output_item.added", "item": item},), 3, "Once upon", tokens=2
    )
    body = body_of(requested(Api.RESPONSES, {"input": "Tell.", "max_output_tokens": 9}, before))
    first, last = body["input"]
    assert first == {"role": "user", "content": "Tell."}
    assert (last["id"], last["status"], last["content"][0]["text"]) == ("msg_1", "in_progress", "Once upon")
    assert body["max_output_tokens"] == 7


@pytest.mark.parametrize(
    ("api", "fields", "bar"),
    [
        (Api.CHAT, {"response_format": {"type": "json_object"}}, ResumeBlocker.STRUCTURED_OUTPUT),
        (Api.CHAT, {"structured_outputs": {"regex": "a+"}}, ResumeBlocker.STRUCTURED_OUTPUT),
        (Api.CHAT, {"tool_choice": "required"}, ResumeBlocker.STRUCTURED_OUTPUT),
        (Api.CHAT, {"tool_choice": {"type": "function", "function": {"name": "f"}}}, ResumeBlocker.STRUCTURED_OUTPUT),
        (Api.CHAT, {"echo": True}, ResumeBlocker.ECHO),
        (Api.CHAT, {"stop": "on a time", "include_stop_str_in_output": True}, ResumeBlocker.STOP_STRING),
        (Api.CHAT, {"add_generation_prompt": False}, ResumeBlocker.UNSUPPORTED_PROMPT),
        (Api.COMPLETIONS, {"prompt": [1, 2]}, ResumeBlocker.UNSUPPORTED_PROMPT),
        (Api.COMPLETIONS, {"prompt": "a", "suffix": "b"}, ResumeBlocker.UNSUPPORTED_PROMPT),
        (Api.COMPLETIONS, {"prompt": "a", "use_beam_search": True}, ResumeBlocker.MULTIPLE_CHOICES),
        (Api.MESSAGES, {"thinking": {"type": "disabled"}}, ResumeBlocker.UNSUPPORTED_PROMPT),
        (
            Api.MESSAGES,
            {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
            ResumeBlocker.STRUCTURED_OUTPUT,
        ),
        (
            Api.MESSAGES,
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            ResumeBlocker.UNSUPPORTED_PROMPT,
        ),
        (
            Api.MESSAGES,
            {"messages": [*MESSAGES, {"role": "assistant", "content": "So"}]},
            ResumeBlocker.UNSUPPORTED_PROMPT,
        ),
        (Api.RESPONSES, {"previous_response_id": "resp_1"}, ResumeBlocker.STORED_RESPONSE),
        (Api.RESPONSES, {"text": {"format": {"type": "json_schema"}}}, ResumeBlocker.STRUCTURED_OUTPUT),
    ],
)
def test_what_cannot_be_requested_truthfully_is_named(api: Api, fields: dict[str, Any], bar: ResumeBlocker) -> None:
    """The client is told that its stream was lost, and operators why."""
    assert requested(api, {"messages": MESSAGES, "input": "Tell.", "max_tokens": 99} | fields) is bar


def test_a_text_that_is_over_may_be_followed_by_a_call() -> None:
    """Its client was told that it is whole: who goes on with it has nothing more to say, and would call nobody."""
    over = stated(Api.RESPONSES, is_over=True)
    body = {"input": "Tell.", "tools": [{"type": "function", "name": "look"}]}
    assert requested(Api.RESPONSES, body, over) is ResumeBlocker.TOOL_CALL
    again = requested(Api.RESPONSES, body | {"temperature": 0}, over)
    assert isinstance(again, ContinuationRequest)
    assert again.is_replay
    for no_call in ({"input": "Tell."}, body | {"tool_choice": "none"}):
        assert body_of(requested(Api.RESPONSES, no_call, over))["max_output_tokens"] == 1


def test_what_is_reported_in_several_ways_is_not_resumed() -> None:
    """Nor what calls, nor what thinks."""
    body = {"messages": MESSAGES}
    assert requested(Api.CHAT, body, sequences=2) is ResumeBlocker.MULTIPLE_CHOICES
    assert requested(Api.CHAT, body, stated(Api.CHAT, has_call=True)) is ResumeBlocker.TOOL_CALL
    assert requested(Api.CHAT, body, stated(Api.CHAT, has_reasoning=True)) is ResumeBlocker.REASONING
    assert requested(Api.CHAT, body | {"include_reasoning": False}) is ResumeBlocker.REASONING, (
        "nobody saw whether it did"
    )
    assert build_request(Api.CHAT, b"[]", stated(Api.CHAT), 1) is ResumeBlocker.UNSUPPORTED_PROMPT


@pytest.mark.parametrize(
    ("api", "event", "word"),
    [
        (Api.CHAT, {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}, "is_call"),
        (Api.CHAT, {"choices": [{"delta": {"reasoning": "Hm"}}]}, "is_reasoning"),
        (Api.MESSAGES, {"type": "content_block_start", "content_block": {"type": "tool_use"}}, "is_call"),
        (Api.MESSAGES, {"type": "content_block_delta", "delta": {"thinking": "Hm"}}, "is_reasoning"),
        (Api.MESSAGES, {"type": "content_block_start", "content_block": {"type": "redacted_thinking"}}, "is_reasoning"),
        (Api.MESSAGES, {"type": "content_block_delta", "delta": {"partial_json": "{"}}, "is_call"),
        (Api.RESPONSES, {"type": "response.output_item.added", "item": {"type": "function_call"}}, "is_call"),
        (Api.RESPONSES, {"type": "response.output_item.added", "item": {"type": "reasoning"}}, "is_reasoning"),
        (Api.RESPONSES, {"type": "response.reasoning_text.delta", "delta": "Hm"}, "is_reasoning"),
        (Api.RESPONSES, {"type": "response.function_call_arguments.delta", "delta": "{"}, "is_call"),
    ],
)
def test_calls_and_thoughts_are_detected_in_any_words(api: Api, event: dict[str, Any], word: str) -> None:
    """Each API has its own."""
    assert getattr(content_of(api, event), word)


def test_an_event_that_went_out_in_part_is_not_stated() -> None:
    """Nor is anything behind an error, or what cannot be read."""
    event = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
    for behind in (event[:30], b'data: {"error":{"message":"no"}}\n\n' + event, b"data: {broken\n\n" + event):
        assert read_delivered(Api.CHAT, event + behind, 1, withholds_usage=False).text == "Hi"


def test_events_that_were_kept_as_one_count_as_many() -> None:
    """Of a run only the texts are kept."""
    event = b'data: {"choices":[{"index":0,"delta":{"content":"Hi you there"}}]}\n\n'
    before = read_delivered(Api.CHAT, event, 3, withholds_usage=False)
    assert (before.text, before.tokens, before.event_count) == ("Hi you there", 3, 3)
