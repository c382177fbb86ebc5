"""Messages in the form that a template looks at."""

from typing import Any

import pytest

from gateway.kv_index.message_normalization import normal_messages
from gateway.kv_index.prompts import UnseenError


def normal(*messages: dict[str, Any], parts: bool = False, developers: bool = False) -> list[dict[str, Any]]:
    return normal_messages(messages, wants_parts=parts, knows_developers=developers)


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
    with pytest.raises(UnseenError, match="media"):
        normal({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]})
