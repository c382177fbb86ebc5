"""Four dialects as one form: the same talk is the same messages, and what cannot be known is not guessed."""

from typing import Any

import msgspec
import pytest

from gateway.kv_index.prompts import PromptInput, UntokenizableError, read_prompt
from routing.request import Api

ASKED = {"role": "user", "content": "Where?"}
CALL = {"id": "c1", "function": {"arguments": '{"x": 1}', "name": "f"}, "type": "function"}
TOOL = {"name": "f", "description": "Does f.", "parameters": {"type": "object"}}
DUMPED = {"type": "function", "function": TOOL}


def read(api: Api, **stated: Any) -> PromptInput:
    return read_prompt(api, msgspec.json.encode({"model": "m", **stated}))


def test_one_talk_is_the_same_messages_in_three_dialects() -> None:
    """System prompt, a call, its result and the next question."""
    messages = [
        {"role": "system", "content": "Be brief."},
        ASKED,
        {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "here"},
        {"role": "user", "content": "Thanks."},
    ]
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'}
    items = [
        ASKED,
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        call,
        {"type": "function_call_output", "call_id": "c1", "output": "here"},
        {"role": "user", "content": "Thanks."},
    ]
    blocks = [
        ASKED,
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "here"}]},
                {"type": "text", "text": "Thanks."},
            ],
        },
    ]
    tool = {"name": "f", "description": "Does f.", "input_schema": {"type": "object"}}
    spoken = [
        read(Api.CHAT, messages=messages, tools=[{"type": "function", "function": TOOL}]),
        read(Api.RESPONSES, instructions="Be brief.", input=items, tools=[{"type": "function", **TOOL}]),
        read(Api.MESSAGES, system="Be brief.", messages=blocks, tools=[tool]),
    ]
    for one in spoken:
        assert one.fields["messages"] == messages
        assert one.fields["tools"] == [DUMPED]
        assert one.fields["chat_template_kwargs"] == {}


def test_a_chat_says_how_it_is_to_be_rendered() -> None:
    """Settings of the template, thinking by effort, continued messages, special tokens, a salt."""
    messages = [{"role": "assistant", "content": "a", "reasoning_content": "hm"}]
    stated = read(
        Api.CHAT,
        messages=messages,
        chat_template_kwargs={"mode": "x"},
        reasoning_effort="none",
        continue_final_message=True,
        add_special_tokens=True,
        cache_salt="s",
    )
    assert stated.fields == {
        "messages": messages,
        "tools": None,
        "chat_template_kwargs": {"mode": "x", "enable_thinking": False, "reasoning_effort": "none"},
        "add_generation_prompt": False,
        "continue_final_message": True,
        "add_special_tokens": True,
    }
    assert stated.salt == "s"
    assert read(Api.CHAT, messages=messages).fields["add_generation_prompt"] is True


def test_tools_of_other_dialects_become_a_chats() -> None:
    """What was not said of a tool is null; newer words are there only where they were said."""
    tools = [{"type": "function", "name": "f", "strict": True, "odd": 1}]
    assert read(Api.RESPONSES, input="x", tools=tools).fields["tools"] == [
        {"type": "function", "function": {"name": "f", "description": None, "parameters": None, "strict": True}}
    ]


def test_completions_are_texts_or_ids() -> None:
    """One prompt, however it is packed."""
    assert read(Api.COMPLETIONS, prompt="sea").fields == {"prompt": "sea", "add_special_tokens": True}
    bare = read(Api.COMPLETIONS, prompt=["sea"], add_special_tokens=False)
    assert bare.fields == {"prompt": "sea", "add_special_tokens": False}
    assert read(Api.COMPLETIONS, prompt=[1, 2]).ids == [1, 2]
    assert read(Api.COMPLETIONS, prompt=[[1, 2]], cache_salt="s") == PromptInput({}, [1, 2], "s")


def test_anthropics_thoughts_and_empty_blocks() -> None:
    """Thoughts are reasoning, billing headers and hidden thoughts are nothing, disabled thinking is an effort."""
    stated = read(
        Api.MESSAGES,
        system=[{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "Be brief."}],
        messages=[
            ASKED,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "redacted_thinking", "data": "?"},
                    {"type": "text", "text": "a"},
                    {"type": "text", "text": "b"},
                    {"type": "text", "text": ""},
                ],
            },
        ],
        thinking={"type": "disabled"},
    )
    assert stated.fields["messages"][0] == {"role": "system", "content": "Be brief."}
    assert stated.fields["messages"][2] == {
        "role": "assistant",
        "reasoning": "hm",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    assert stated.fields["chat_template_kwargs"]["enable_thinking"] is False


PICTURE = {"role": "user", "content": [{"type": "image", "source": {}}]}


@pytest.mark.parametrize(
    ("api", "stated", "why"),
    [
        (Api.CHAT, {"messages": [ASKED], "chat_template": "x"}, "prompt_changed"),
        (Api.COMPLETIONS, {"prompt": "x", "truncate_prompt_tokens": 4}, "prompt_changed"),
        (Api.COMPLETIONS, {"prompt": ["a", "b"]}, "several_prompts"),
        (Api.COMPLETIONS, {"prompt": []}, "several_prompts"),
        (Api.COMPLETIONS, {}, "invalid_body"),
        (Api.CHAT, {"messages": [3]}, "invalid_body"),
        (Api.CHAT, {"messages": [ASKED, PICTURE]}, "media"),
        (Api.RESPONSES, {"input": "x", "tools": [{}]}, "invalid_body"),
        (Api.RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "media"),
        (Api.RESPONSES, {"input": "x", "previous_response_id": "r"}, "stored_response"),
        (Api.RESPONSES, {"input": [{"type": "reasoning"}]}, "unsupported_items"),
        (Api.RESPONSES, {"input": [{"role": "assistant", "content": "Once"}]}, "continued_message"),
        (Api.RESPONSES, {"input": "x", "tools": [{"type": "web_search"}]}, "tools"),
        (Api.MESSAGES, {"messages": [PICTURE]}, "media"),
        (Api.MESSAGES, {"messages": [{"role": "system", "content": "x"}]}, "unsupported_items"),
        (Api.EMBEDDINGS, {"input": "x"}, "unsupported_api"),
    ],
)
def test_what_cannot_be_known_is_not_guessed(api: Api, stated: dict[str, Any], why: str) -> None:
    """Each with the word that the metric shows."""
    with pytest.raises(UntokenizableError, match=f"^{why}$"):
        read(api, **stated)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"a":' * 5000])
def test_noise_is_unobserved(body: bytes) -> None:
    """It is the engine's to refuse."""
    with pytest.raises(UntokenizableError):
        read_prompt(Api.CHAT, body)
