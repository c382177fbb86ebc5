"""Four dialects as one form: the same talk is the same messages, and what cannot be known is not guessed."""

from typing import Any

import msgspec
import pytest

from gateway.kv_index.prompts import (
    ChatInput,
    PromptInput,
    TextInput,
    TokenIdsInput,
    UntokenizableError,
    normalize_messages,
    read_prompt,
)
from routing.request import Api

ASKED = {"role": "user", "content": "Where?"}
CALL = {"id": "c1", "function": {"arguments": '{"x": 1}', "name": "f"}, "type": "function"}
TOOL = {"name": "f", "description": "Does f.", "parameters": {"type": "object"}}
DUMPED = {"type": "function", "function": TOOL}


def read(api: Api, **said: Any) -> PromptInput:
    return read_prompt(api, msgspec.json.encode({"model": "m", **said}))


def chat(spoken: PromptInput) -> ChatInput:
    assert isinstance(spoken, ChatInput)
    return spoken


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
        read(Api.CHAT, messages=messages, tools=[{"type": "function", "function": TOOL, "more": 1}]),
        read(Api.RESPONSES, instructions="Be brief.", input=items, tools=[{"type": "function", **TOOL}]),
        read(Api.MESSAGES, system="Be brief.", messages=blocks, tools=[tool]),
    ]
    for one in spoken:
        assert list(chat(one).messages) == messages
        assert chat(one).tools == [DUMPED]
        assert chat(one).settings == {"add_generation_prompt": True}


def test_a_chat_says_how_it_is_to_be_rendered() -> None:
    """Settings of the template, thinking by effort, continued messages, special tokens, a salt."""
    said = chat(
        read(
            Api.CHAT,
            messages=[{"role": "assistant", "content": "a", "reasoning_content": "hm"}],
            chat_template_kwargs={"mode": "x", "add_generation_prompt": True},
            reasoning_effort="none",
            add_generation_prompt=False,
            continue_final_message=True,
            add_special_tokens=True,
            cache_salt="s",
        )
    )
    assert said.messages == [{"role": "assistant", "content": "a", "reasoning": "hm"}]
    assert said.settings == {
        "mode": "x",
        "enable_thinking": False,
        "reasoning_effort": "none",
        "add_generation_prompt": False,
    }
    assert (said.continue_final, said.special_tokens, said.salt) == (True, True, "s")


def test_tools_are_dumped_as_vllm_dumps_them() -> None:
    """What was not said of a tool is null; newer words are there only where they were said."""
    tools = [{"function": {"name": "f", "strict": True, "odd": 1}}]
    assert chat(read(Api.CHAT, messages=[ASKED], tools=tools)).tools == [
        {"type": "function", "function": {"name": "f", "description": None, "parameters": None, "strict": True}}
    ]


def test_completions_are_texts_or_ids() -> None:
    """One prompt, however it is packed."""
    assert read(Api.COMPLETIONS, prompt="sea") == TextInput("sea")
    assert read(Api.COMPLETIONS, prompt=["sea"], add_special_tokens=False) == TextInput("sea", special_tokens=False)
    assert read(Api.COMPLETIONS, prompt=[1, 2]) == TokenIdsInput([1, 2])
    assert read(Api.COMPLETIONS, prompt=[[1, 2]], cache_salt="s") == TokenIdsInput([1, 2], "s")


def test_anthropics_thoughts_and_empty_blocks() -> None:
    """Thoughts are reasoning, billing headers and hidden thoughts are nothing, disabled thinking is an effort."""
    said = chat(
        read(
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
    )
    assert said.messages[0] == {"role": "system", "content": "Be brief."}
    assert said.messages[2] == {
        "role": "assistant",
        "reasoning": "hm",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    assert said.settings["enable_thinking"] is False


PICTURE = {"role": "user", "content": [{"type": "image", "source": {}}]}


@pytest.mark.parametrize(
    ("api", "said", "why"),
    [
        (Api.CHAT, {"messages": [ASKED], "chat_template": "x"}, "prompt_changed"),
        (Api.COMPLETIONS, {"prompt": "x", "truncate_prompt_tokens": 4}, "prompt_changed"),
        (Api.COMPLETIONS, {"prompt": ["a", "b"]}, "several_prompts"),
        (Api.COMPLETIONS, {"prompt": []}, "several_prompts"),
        (Api.COMPLETIONS, {}, "invalid_body"),
        (Api.CHAT, {"messages": [3]}, "invalid_body"),
        (Api.CHAT, {"messages": [ASKED], "tools": [{}]}, "invalid_body"),
        (Api.RESPONSES, {"input": "x", "previous_response_id": "r"}, "stored_response"),
        (Api.RESPONSES, {"input": [{"type": "reasoning"}]}, "unsupported_items"),
        (Api.RESPONSES, {"input": [{"role": "assistant", "content": "Once"}]}, "continued_message"),
        (Api.RESPONSES, {"input": "x", "tools": [{"type": "web_search"}]}, "tools"),
        (Api.MESSAGES, {"messages": [PICTURE]}, "media"),
        (Api.MESSAGES, {"messages": [{"role": "system", "content": "x"}]}, "unsupported_items"),
        (Api.EMBEDDINGS, {"input": "x"}, "unsupported_api"),
    ],
)
def test_what_cannot_be_known_is_not_guessed(api: Api, said: dict[str, Any], why: str) -> None:
    """Each with the word that the metric shows."""
    with pytest.raises(UntokenizableError, match=f"^{why}$"):
        read(api, **said)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"a":' * 5000])
def test_noise_is_unseen(body: bytes) -> None:
    """It is the engine's to refuse."""
    with pytest.raises(UntokenizableError):
        read_prompt(Api.CHAT, body)


def normal(*messages: dict[str, Any], parts: bool = False, developers: bool = False) -> list[dict[str, Any]]:
    return normalize_messages(messages, wants_parts=parts, knows_developers=developers)


PARTS = [{"type": "text", "text": "a"}, "b", {"type": "refusal", "refusal": "c"}, {"type": "text", "text": None}]


def test_content_is_one_text_or_parts() -> None:
    """As the template wants it; a tool's result is a text in any case, nothing is an empty text."""
    said = {"role": "user", "content": PARTS, "name": "Ann", "odd": 1}
    assert normal(said) == [{"role": "user", "content": "a\nb\nc", "name": "Ann"}]
    as_parts = [{"type": "text", "text": text} for text in "abc"]
    assert normal(said, parts=True) == [{"role": "user", "content": as_parts, "name": "Ann"}]
    result = {"role": "tool", "content": PARTS[:2], "tool_call_id": "c1"}
    assert normal(result, parts=True) == [{"role": "tool", "content": "a\nb", "tool_call_id": "c1"}]
    assert normal({"role": "user", "content": "x"}, parts=True)[0]["content"] == [{"type": "text", "text": "x"}]
    assert normal({"role": "assistant"}) == [{"role": "assistant", "content": ""}]


@pytest.mark.parametrize(
    ("given", "made"),
    [('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ("no json", {}), ("[1]", {}), ({"a": 1}, {"a": 1})],
)
def test_arguments_are_objects(given: object, made: object) -> None:
    """Templates require it; what is none becomes an empty one."""
    call = {"id": "c", "function": {"name": "f", "arguments": given}, "type": "function"}
    said = normal({"role": "assistant", "tool_calls": [call], "reasoning": "hm"})[0]
    assert said["tool_calls"][0]["function"] == {"name": "f", "arguments": made}
    assert said["reasoning"] == said["reasoning_content"] == "hm"
    assert call["function"] == {"name": "f", "arguments": given}


def test_no_calls_are_no_calls() -> None:
    """An empty list would send templates down another path."""
    assert "tool_calls" not in normal({"role": "assistant", "content": "x", "tool_calls": []})[0]


def test_billing_headers_are_dropped() -> None:
    """The first line of a system text that begins so; the text itself where there is no more of it."""
    header = "x-anthropic-billing-header: 1"
    assert normal({"role": "system", "content": f"{header}\nBe brief."})[0]["content"] == "Be brief."
    assert normal({"role": "system", "content": [header, "Be brief."]})[0]["content"] == "Be brief."


def test_developers_are_systems_where_the_template_knows_none() -> None:
    """All system messages become one at the start, where one stood further down."""
    system, developer = {"role": "system", "content": "s"}, {"role": "developer", "content": "d", "tools": [1]}
    user = {"role": "user", "content": "u"}
    assert normal(developer, developers=True)[0] == {"role": "developer", "content": "d", "tools": [1]}
    assert normal(system, user, developer) == [{"role": "system", "content": "s\n\nd"}, user]
    assert normal(developer, user) == [{"role": "system", "content": "d"}, user]
    parts = normal(system, user, developer, parts=True)
    assert parts[0] == {"role": "system", "content": "s\n\nd"}


def test_media_are_unseen() -> None:
    """What becomes of a picture in tokens is the engine's secret."""
    with pytest.raises(UntokenizableError, match="media"):
        normal({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]})
