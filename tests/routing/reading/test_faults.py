"""What is wrong with a body is said so that the client can mend it: the field by its path, in JSON's words."""

import json
import re
from typing import Any

import pytest

from routing.reading import read_request
from routing.reading.once import SMALL
from routing.rejection import Reason, Refused
from routing.request import Api


def refusal(body: bytes, api: Api = Api.CHAT) -> Refused:
    with pytest.raises(Refused) as refused:
        read_request(api, body, request_id="req-1")
    return refused.value


NO_JSON: list[tuple[bytes, str]] = [
    (b"", "empty"),
    (b" \n", "empty"),
    (b"{", "truncated"),
    (b'{"model": "m"', "truncated, it ends after byte 13"),
    (b"hello", "invalid character"),
    (b'{"model": "m"} {}', "trailing characters"),
    (b'{"model": "m",}', "trailing comma"),
    (b"{'model': 'm'}", "keys must be strings"),
    (b'{"temperature": NaN}', "invalid character"),
    (b'{"model": "a\nb"}', "invalid character"),
    (b'{"user": "\\q"}', "escape"),
    (b'{"model": "\xff"}', "UTF-8 (byte 11)"),
    (b'{"user": "\xc3"}', "UTF-8"),
    (b'{"user": "\xed\xa0\x80"}', "UTF-8"),
    (b'{"us\xffer": 1}', "UTF-8"),
    (b'\xef\xbb\xbf{"model": "m"}', "byte order mark"),
    ('{"model": "m"}'.encode("utf-16"), "UTF-16"),
    ('{"model": "m"}'.encode("utf-16-be"), "UTF-16"),
    ('{"model": "m"}'.encode("utf-32-le"), "UTF-16"),
    (b'{"model": "m", "user": "\\ud800"}', "\\ud800"),
    (b'{"model": "\\udfff"}', "\\ud800"),
    (b'{"x": ' + b"[" * 100_000, "nested too deeply"),
    (b'{"tools": ' + b'[{"a":' * 100_000, "nested too deeply"),
]


@pytest.mark.parametrize(("body", "words"), NO_JSON, ids=range(len(NO_JSON)))
def test_what_is_no_json_is_refused(body: bytes, words: str) -> None:
    """Not JSON, not UTF-8, nested to death: a refusal that says which, whatever the API."""
    for api in Api:
        refused = refusal(body, api)
        assert refused.reason is Reason.BAD_JSON
        assert words in refused.message
        assert refused.param is None


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"messages": ' + b'[{"content":' * 100_000])
def test_depth_is_survived_where_types_are_checked_too(body: bytes) -> None:
    """Nested to death inside a field we read: refused as well, in whichever words."""
    assert refusal(body).message


@pytest.mark.parametrize("body", [b"[]", b"null", b'"text"', b"3", b"true"])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    """A body that is JSON but no object."""
    refused = refusal(body)
    assert refused.reason is Reason.BAD_REQUEST
    assert refused.param is None
    assert "must be a JSON object" in refused.message


CHAT_PARTS = {"messages": [{"content": "a"}, {"content": [{"type": "text", "text": 3}]}]}

WRONG: list[tuple[Api, dict[str, Any], str, str]] = [
    (Api.CHAT, {"model": 3}, "model", "expected `string | null`, got `integer`"),
    (Api.CHAT, {"model": "m" * 257}, "model", "length <= 256"),
    (Api.CHAT, {"messages": "Hi"}, "messages", "expected `array | null`, got `string`"),
    (Api.CHAT, {"messages": ["Hi"]}, "messages[0]", "expected `object`, got `string`"),
    (Api.CHAT, {"messages": [{"content": 3}]}, "messages[0].content", "expected `string | array | null`"),
    (Api.CHAT, {"messages": [{"role": None}]}, "messages[0].role", "expected `string`, got `null`"),
    (Api.CHAT, CHAT_PARTS, "messages[1].content[0].text", "got `integer`"),
    (Api.CHAT, {"messages": [{"tool_calls": [{"function": []}]}]}, "messages[0].tool_calls[0].function", "array"),
    (Api.CHAT, {"stream": "yes"}, "stream", "expected `boolean | null`, got `string`"),
    (Api.CHAT, {"stream": 1}, "stream", "got `integer`"),
    (Api.CHAT, {"stream_options": True}, "stream_options", "got `boolean`"),
    (Api.CHAT, {"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "got `integer`"),
    (Api.CHAT, {"n": True}, "n", "expected `integer | null`, got `boolean`"),
    (Api.CHAT, {"n": 0}, "n", "expected `integer` >= 1"),
    (Api.CHAT, {"n": 16385}, "n", "expected `integer` <= 16384"),
    (Api.CHAT, {"n": 10**40}, "n", "16384"),
    (Api.CHAT, {"max_tokens": -1}, "max_tokens", ">= 1"),
    (Api.CHAT, {"max_tokens": 0}, "max_tokens", ">= 1"),
    (Api.CHAT, {"max_completion_tokens": 0}, "max_completion_tokens", ">= 1"),
    (Api.RESPONSES, {"max_output_tokens": 0}, "max_output_tokens", ">= 1"),
    (Api.MESSAGES, {"max_tokens": 0}, "max_tokens", ">= 1"),
    (Api.COMPLETIONS, {"max_tokens": 0}, "max_tokens", "0 is for a completion with `echo`"),
    (Api.COMPLETIONS, {"max_tokens": 0, "echo": False}, "max_tokens", "`echo`"),
    (Api.CHAT, {"max_tokens": 2**31}, "max_tokens", "<= 2147483647"),
    (Api.CHAT, {"max_tokens": "10"}, "max_tokens", "got `string`"),
    (Api.CHAT, {"max_completion_tokens": 1.5}, "max_completion_tokens", "got `float`"),
    (Api.CHAT, {"session_id": 3}, "session_id", "got `integer`"),
    (Api.COMPLETIONS, {"prompt": [1, -1]}, "prompt[1]", ">= 0"),
    (Api.COMPLETIONS, {"prompt": [[1, 2**31]]}, "prompt[0][1]", "<= 2147483647"),
    (Api.COMPLETIONS, {"prompt": [True]}, "prompt[0]", "got `boolean`"),
    (Api.COMPLETIONS, {"prompt": 3}, "prompt", "got `integer`"),
    (Api.RESPONSES, {"input": 3}, "input", "got `integer`"),
    (Api.RESPONSES, {"input": [{"content": {}}]}, "input[0].content", "got `object`"),
    (Api.RESPONSES, {"instructions": []}, "instructions", "got `array`"),
    (Api.RESPONSES, {"previous_response_id": "x" * 257}, "previous_response_id", "256"),
    (Api.MESSAGES, {"system": 3}, "system", "got `integer`"),
    (
        Api.MESSAGES,
        {"messages": [{"content": [{"type": "tool_use", "name": 1}]}]},
        "messages[0].content[0].name",
        "int",
    ),
    (Api.EMBEDDINGS, {"input": {"a": 1}, "messages": 3}, "messages", "got `integer`"),
    (Api.RERANK, {"documents": 3}, "documents", "got `integer`"),
]


@pytest.mark.parametrize(("api", "fields", "param", "words"), WRONG)
def test_a_wrong_field_is_named(api: Api, fields: dict[str, Any], param: str, words: str) -> None:
    """The path of the field stands in the message and as `param`; Python's words for types do not."""
    refused = refusal(json.dumps({"model": "m"} | fields).encode(), api)
    assert refused.reason is Reason.BAD_REQUEST
    assert refused.param == param
    assert words in refused.message
    assert f"`{param}`" in refused.message
    assert not re.search(r"\b(str|int|bool)\b", refused.message)


@pytest.mark.parametrize(("api", "fields", "param", "words"), WRONG)
def test_a_wrong_field_of_a_large_body_is_named_alike(api: Api, fields: dict[str, Any], param: str, words: str) -> None:
    """Large bodies are decoded otherwise; the refusal is the same."""
    refused = refusal(json.dumps({"model": "m"} | fields | {"user": "u" * SMALL}).encode(), api)
    assert (refused.reason, refused.param) == (Reason.BAD_REQUEST, param)
    assert words in refused.message


@pytest.mark.parametrize("body", [{}, {"model": None}, {"model": ""}])
@pytest.mark.parametrize("api", list(Api))
def test_a_missing_model_is_named(api: Api, body: dict[str, Any]) -> None:
    """With several models behind one address nobody else can know which is meant."""
    refused = refusal(json.dumps(body).encode(), api)
    assert (refused.reason, refused.param) == (Reason.BAD_REQUEST, "model")
    assert "`model` is missing" in refused.message


def test_an_integer_of_a_thousand_digits_is_refused() -> None:
    """Beyond what Python would convert, too."""
    assert refusal(b'{"model": "m", "n": ' + b"9" * 5000 + b"}").param == "n"


def test_no_refusal_repeats_what_was_said() -> None:
    """Messages name places and types, never a prompt's text: refusals are logged."""
    for body in (b'{"model": "m", "messages": [{"content": {"secret": "secret"}}]}', b'{"model": "secret" "secret"}'):
        assert "secret" not in refusal(body).message
